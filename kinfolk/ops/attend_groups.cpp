#include "kinfolk/ops/attend_groups.h"

#include <ATen/autocast_mode.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/parallel.h"

namespace kinfolk {
namespace {

using kernels::GroupLists;
using kernels::KeyGroup;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

GroupLists lists_of(const GroupPlan& plan, int64_t i) {
  const TokenGroups& one = plan.each[static_cast<size_t>(i)];
  GroupLists out;
  out.groups = one.groups.data(), out.count = static_cast<int64_t>(one.groups.size());
  out.query = one.query.data(), out.slot = one.slot.data(), out.key = one.key.data(), out.of = one.of.data();
  out.first = plan.first, out.tokens = plan.length, out.rounds = plan.rounds, out.slots = plan.slots;
  out.causal = plan.causal, out.own = plan.own, out.once = plan.once, out.across = plan.across;
  return out;
}

/// Of a lane and head in double, pair by pair.
struct Pairs {
  GroupLists lists;
  int64_t width, value_width;
  double scale;
  const double *q, *k, *v;
  double *out, *lse;

  /// f(query token, key token, slot, score) for every pair that meets.
  template <class F>
  void each(const F& f) const {
    for (int64_t g = 0; g < lists.count; ++g) {
      const KeyGroup& group = lists.groups[g];
      for (const int32_t other : {group.before, static_cast<int32_t>(g)}) {
        if (other < 0) continue;
        const KeyGroup& met = lists.groups[other];
        const bool behind = other == g;
        for (int32_t n = group.query; n < group.query + group.queries; ++n)
          for (int32_t m = met.key; m < met.key + met.keys; ++m) {
            const int32_t i = lists.query[n], j = lists.key[m];
            if (!kernels::meets(lists, i, j, group.round, behind)) continue;
            double sum = 0;
            for (int64_t c = 0; c < width; ++c) sum += q[(i - lists.first) * width + c] * k[j * width + c];
            f(i, j, lists.slot[n], scale * sum);
          }
      }
    }
  }

  void forward() const {
    std::vector<double> highest(static_cast<size_t>(lists.slots), -INFINITY), sum(highest.size(), 0);
    each([&](int32_t, int32_t, int32_t s, double score) {
      double& high = highest[static_cast<size_t>(s)];
      high = std::max(high, score);
    });
    std::fill_n(out, lists.slots * value_width, 0);
    each([&](int32_t, int32_t j, int32_t s, double score) {
      const double p = std::exp(score - highest[static_cast<size_t>(s)]);
      sum[static_cast<size_t>(s)] += p;
      for (int64_t c = 0; c < value_width; ++c) out[s * value_width + c] += p * v[j * value_width + c];
    });
    for (int64_t s = 0; s < lists.slots; ++s) {
      const double total = sum[static_cast<size_t>(s)];
      lse[s] = highest[static_cast<size_t>(s)] + std::log(total);
      for (int64_t c = 0; c < value_width && total > 0; ++c) out[s * value_width + c] /= total;
    }
  }

  void backward(const double* g, double* dq, double* dk, double* dv) const {
    each([&](int32_t i, int32_t j, int32_t s, double score) {
      const double p = std::exp(score - lse[s]);
      const double *g_row = g + s * value_width, *o = out + s * value_width, *value = v + j * value_width;
      double ds = 0;
      for (int64_t c = 0; c < value_width; ++c) {
        ds += g_row[c] * (value[c] - o[c]);
        dv[j * value_width + c] += p * g_row[c];
      }
      ds *= p * scale;
      for (int64_t c = 0; c < width; ++c) {
        dq[(i - lists.first) * width + c] += ds * k[j * width + c];
        dk[j * width + c] += ds * q[(i - lists.first) * width + c];
      }
    });
  }
};

double scale_of(const GroupPlan& plan, const Tensor& q) {
  return plan.scale != 0 ? plan.scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
}

/// Where lane and head i of x [B, H, n, d] begins.
int64_t begin_of(const Tensor& x, int64_t i) { return i / x.size(1) * x.stride(0) + i % x.size(1) * x.stride(1); }
template <class T>
const T* rows_of(const Tensor& x, int64_t i) {
  return x.const_data_ptr<T>() + begin_of(x, i);
}
template <class T>
T* rows_to(const Tensor& x, int64_t i) {
  return x.mutable_data_ptr<T>() + begin_of(x, i);
}

struct Held : torch::CustomClassHolder {
  explicit Held(std::shared_ptr<const GroupPlan> plan) : plan(std::move(plan)) {}
  std::shared_ptr<const GroupPlan> plan;
};

/// q, k, v on the CPU, float or double, the rows of a lane and head together.
struct AttendGroups : torch::autograd::Function<AttendGroups> {
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                               const std::shared_ptr<const GroupPlan>& plan) {
    Tensor out = at::empty({plan->batch, plan->heads, plan->slots, v.size(3)}, v.options());
    Tensor lse = at::empty({plan->batch, plan->heads, plan->slots}, v.options());
    parallel_for(0, plan->batch * plan->heads, 1, [&](int64_t from, int64_t until) {
      for (int64_t i = from; i < until; ++i) {
        if (q.scalar_type() == at::kDouble) {
          pairs(*plan, i, q, k, v, out, lse).forward();
        } else {
          kernels::attend_groups_forward(described(*plan, i, q, k, v, out, lse));
        }
      }
    });
    ctx->save_for_backward({q, k, v, out, lse});
    ctx->saved_data["plan"] = at::IValue::make_capsule(c10::make_intrusive<Held>(plan));
    ctx->mark_non_differentiable({lse});
    return {out, lse};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (at::GradMode::is_enabled()) {
      fail("[attend_groups] expected first derivatives; the backward pass has no derivative");
    }
    const auto saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4];
    const auto plan = c10::static_intrusive_pointer_cast<Held>(ctx->saved_data["plan"].toCapsule())->plan;
    const Tensor g = grads[0].contiguous();
    const auto zeros = [](const Tensor& x) { return at::zeros(x.sizes(), x.options()); };
    const Tensor dq = zeros(q), dk = zeros(k), dv = zeros(v);
    parallel_for(0, plan->batch * plan->heads, 1, [&](int64_t from, int64_t until) {
      for (int64_t i = from; i < until; ++i) {
        if (q.scalar_type() == at::kDouble) {
          pairs(*plan, i, q, k, v, out, lse)
              .backward(rows_of<double>(g, i), rows_to<double>(dq, i), rows_to<double>(dk, i), rows_to<double>(dv, i));
        } else {
          kernels::AttendGroups a = described(*plan, i, q, k, v, out, lse);
          a.d_out = rows_of<float>(g, i);
          a.dq = rows_to<float>(dq, i), a.dk = rows_to<float>(dk, i), a.dv = rows_to<float>(dv, i);
          kernels::attend_groups_backward(a);
        }
      }
    });
    return {dq, dk, dv, {}};
  }

 private:
  static Pairs pairs(const GroupPlan& plan, int64_t i, const Tensor& q, const Tensor& k, const Tensor& v,
                     const Tensor& out, const Tensor& lse) {
    return {lists_of(plan, i),
            q.size(3),
            v.size(3),
            scale_of(plan, q),
            rows_of<double>(q, i),
            rows_of<double>(k, i),
            rows_of<double>(v, i),
            rows_to<double>(out, i),
            lse.mutable_data_ptr<double>() + i * plan.slots};
  }
  static kernels::AttendGroups described(const GroupPlan& plan, int64_t i, const Tensor& q, const Tensor& k,
                                         const Tensor& v, const Tensor& out, const Tensor& lse) {
    kernels::AttendGroups a;
    a.lists = lists_of(plan, i);
    a.width = q.size(3), a.value_width = v.size(3), a.scale = static_cast<float>(scale_of(plan, q));
    a.q = rows_of<float>(q, i), a.k = rows_of<float>(k, i), a.v = rows_of<float>(v, i);
    a.out = rows_to<float>(out, i), a.lse = lse.mutable_data_ptr<float>() + i * plan.slots;
    return a;
  }
};

}  // namespace

GroupRead attend_groups(const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::shared_ptr<const GroupPlan>& given) {
  if (!given) fail("[attend_groups] expected a plan; found none");
  const auto of = [&](const Tensor& x, int64_t rows) {
    return x.dim() == 4 && x.size(0) == given->batch && x.size(1) == given->heads && x.size(2) == rows;
  };
  if (!of(q, given->length - given->first) || !of(k, given->length) || !of(v, given->length) ||
      q.size(3) != k.size(3)) {
    fail("[attend_groups] expected q, k [B, H, L, d] and v [B, H, L, e] of ", given->batch, " lanes, ", given->heads,
         " heads and ", given->length, " tokens, q without the first ", given->first, "; found ", q.sizes(), ", ",
         k.sizes(), " and ", v.sizes());
  }
  const c10::impl::ExcludeDispatchKeyGuard own_types(c10::autocast_dispatch_keyset);
  const auto type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto plain = [&](const Tensor& given_rows) {
    const Tensor x = given_rows.to(at::kCPU, type);
    return x.stride(3) == 1 && x.stride(2) == x.size(3) ? x : x.contiguous();
  };
  const auto made = AttendGroups::apply(plain(q), plain(k), plain(v), given);
  return {made[0].to(v.device(), v.scalar_type()), made[1].to(v.device())};
}

}  // namespace kinfolk
