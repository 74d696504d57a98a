#include "kinfolk/ops/relu_attend.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/ops/attend_layout.h"

namespace kinfolk {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kQueries = 128, kKeys = 512;

/// The tiles of a call in which some query may see some key.
struct ReluTiles {
  ReluTiles(const Tensor& q_at, const Tensor& q_document, const Keys& keys,
            const std::shared_ptr<const Pattern>& pattern)
      : pattern(pattern),
        q_at(q_at),
        q_document(q_document),
        set{{}, {}, keys.at, keys.document, {}, {}},
        layout(*pattern, q_at, q_document, {set}, kQueries, kKeys) {}

  struct Tile {
    int64_t row, rows, column, columns;
    Tensor visible;  ///< bool [B or 1, 1, rows, columns]; undefined: all
    Tensor masked(const Tensor& scores) const {
      return visible.defined() ? scores.masked_fill(visible.logical_not(), 0) : scores;
    }
  };
  void each(const std::function<void(const Tile&)>& use) const {
    const int64_t length = q_at.size(1), many = set.at.size(1);
    for (int64_t block = 0; block < layout.query_blocks(); ++block)
      for (int64_t b = 0; b < layout.key_blocks(0); ++b) {
        const Meeting meeting = layout.meet(block, 0, b);
        if (!meeting.any) continue;
        Tile tile{block * kQueries,
                  std::min(kQueries, length - block * kQueries),
                  b * kKeys,
                  std::min(kKeys, many - b * kKeys),
                  {}};
        if (meeting.masked()) tile.visible = visible(tile);
        use(tile);
      }
  }
  Tensor visible(const Tile& t) const {
    const auto row = [&](const Tensor& x) { return x.narrow(1, t.row, t.rows).unsqueeze(1).unsqueeze(3); };
    const auto column = [&](const Tensor& x) { return x.narrow(1, t.column, t.columns).unsqueeze(1).unsqueeze(2); };
    const Tensor i = row(q_at), j = column(set.at);
    Tensor out = pattern->sees(i, j).logical_and(i.ge(0)).logical_and(j.ge(0));
    if (q_document.defined() && set.document.defined()) {
      out = out.logical_and(row(q_document).eq(column(set.document)));
    }
    return out;
  }
  std::shared_ptr<const Pattern> pattern;
  Tensor q_at, q_document;
  Keys set;
  Layout layout;
};

struct ReluAttend : torch::autograd::Function<ReluAttend> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::shared_ptr<ReluTiles>& tiles, double scale) {
    Tensor out = at::zeros({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
    tiles->each([&](const ReluTiles::Tile& t) {
      const Tensor scores = at::matmul(q.narrow(2, t.row, t.rows), k.narrow(2, t.column, t.columns).transpose(2, 3));
      const Tensor weights = t.masked(scores.mul_(scale).relu_().square_());
      out.narrow(2, t.row, t.rows).add_(at::matmul(weights, v.narrow(2, t.column, t.columns)));
    });
    ctx->save_for_backward({q, k, v});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["tiles"] = at::IValue::make_capsule(c10::make_intrusive<Held>(tiles));
    return out;
  }

  /// With r = relu(scale q k^T): dv = (r^2)^T do, d(q k^T) = 2 scale r (do v^T).
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (at::GradMode::is_enabled())
      fail("[relu_attend] expected first derivatives; the backward pass has no derivative");
    const auto saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const double scale = ctx->saved_data["scale"].toDouble();
    const auto tiles = c10::static_intrusive_pointer_cast<Held>(ctx->saved_data["tiles"].toCapsule())->tiles;
    Tensor dq = at::zeros_like(q), dk = at::zeros_like(k), dv = at::zeros_like(v);
    tiles->each([&](const ReluTiles::Tile& t) {
      const Tensor rows = q.narrow(2, t.row, t.rows), columns = k.narrow(2, t.column, t.columns);
      const Tensor d_out = grads[0].narrow(2, t.row, t.rows);
      const Tensor r = t.masked(at::matmul(rows, columns.transpose(2, 3)).mul_(scale).relu_());
      dv.narrow(2, t.column, t.columns).add_(at::matmul(r.square().transpose(2, 3), d_out));
      const Tensor ds = at::matmul(d_out, v.narrow(2, t.column, t.columns).transpose(2, 3)).mul_(r).mul_(2 * scale);
      dq.narrow(2, t.row, t.rows).add_(at::matmul(ds, columns));
      dk.narrow(2, t.column, t.columns).add_(at::matmul(ds.transpose(2, 3), rows));
    });
    return {dq, dk, dv, {}, {}};
  }

  struct Held : torch::CustomClassHolder {
    explicit Held(std::shared_ptr<ReluTiles> tiles) : tiles(std::move(tiles)) {}
    std::shared_ptr<ReluTiles> tiles;
  };
};

Tensor counted(const ReluTiles& tiles, at::ScalarType type) {
  Tensor count = at::zeros({tiles.q_at.size(0), 1, tiles.q_at.size(1)}, tiles.q_at.options().dtype(type));
  tiles.each([&](const ReluTiles::Tile& t) {
    Tensor rows = count.narrow(2, t.row, t.rows);
    if (t.visible.defined()) {
      rows.add_(t.visible.sum(-1));
    } else {
      rows.add_(t.columns);
    }
  });
  return count;
}

}  // namespace

ReluRead relu_attend(const Tensor& q, const Tensor& q_at, const Tensor& q_document, const Keys& keys,
                     const std::shared_ptr<const Pattern>& pattern, double scale) {
  if (q.dim() != 4 || keys.k.dim() != 4 || keys.v.dim() != 4 || keys.k.size(3) != q.size(3) ||
      keys.k.size(2) != keys.v.size(2) || keys.at.size(1) != keys.k.size(2) || q_at.size(1) != q.size(2)) {
    fail("[relu_attend] expected q [B, H, L, s], k [B, H, S, s], v [B, H, S, e]; found ", q.sizes(), ", ",
         keys.k.sizes(), ", ", keys.v.sizes());
  }
  if (keys.from.defined() || keys.until.defined()) fail("[relu_attend] expected keys without limits");
  const c10::impl::ExcludeDispatchKeyGuard own_types(c10::autocast_dispatch_keyset);
  const auto type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto tiles = std::make_shared<ReluTiles>(q_at, q_document, keys, pattern);
  return {ReluAttend::apply(q.to(type), keys.k.to(type), keys.v.to(type), tiles, scale).to(keys.v.scalar_type()),
          counted(*tiles, type)};
}

Tensor visible_keys(const Tensor& q_at, const Tensor& q_document, const Keys& keys,
                    const std::shared_ptr<const Pattern>& pattern) {
  return counted(ReluTiles(q_at, q_document, keys, pattern), at::kDouble);
}

}  // namespace kinfolk
