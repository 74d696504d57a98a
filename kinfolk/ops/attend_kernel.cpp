// The fused path in float32, of bfloat16 too: the kernel of kinfolk/kernels/attend.h, with tables by distance and
// scores by query and distance that may learn.
#include <mutex>

#include "kinfolk/core/parallel.h"
#include "kinfolk/kernels/attend.h"
#include "kinfolk/kernels/attend_drop.h"
#include "kinfolk/ops/attend_call.h"
#include "kinfolk/ops/attend_tiles.h"

namespace kinfolk {
namespace {

Tensor unit_rows(const Tensor& x) { return x.size(-1) <= 1 || x.stride(-1) == 1 ? x : x.contiguous(); }
Tensor floats(const Tensor& x) { return unit_rows(x.to(at::kFloat)); }

template <class T>
kernels::Strided<T> strided(const Tensor& x) {
  return {static_cast<T*>(x.data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
}

/// Zeros laid out as x is, or in order where rows of x are not contiguous.
Tensor sum_like(const Tensor& x) {
  const auto options = x.options().dtype(at::kFloat);
  const Tensor sum = at::zeros_like(x, options);
  return sum.size(-1) <= 1 || sum.stride(-1) == 1 ? sum : at::zeros(x.sizes(), options);
}

/// A call as the kernel takes it, with the tensors that it points into.
struct Described {
  Described(const AttendCall& call, const std::vector<Tensor>& inputs) {
    a.batch = call.batch, a.heads = call.heads, a.groups = call.groups, a.length = call.length;
    a.width = call.width, a.value_width = call.value_width;
    const Places at{call};
    for (size_t b = 0; b < call.bands.size(); ++b) {
      kernels::AttendBand band;
      band.q = strided<const float>(hold(floats(inputs[at.q(b)])));
      band.scale = static_cast<float>(call.bands[b].scale);
      band.nearest = std::max(call.bands[b].nearest, call.nearest);
      band.farthest = std::min(call.bands[b].farthest, call.farthest);
      a.bands.push_back(band);
    }
    a.q_at = whole(call.q_at), a.q_document = whole(call.q_document);
    for (size_t s = 0; s < call.keys.size(); ++s) {
      const Keys& keys = call.keys[s];
      kernels::AttendSet set;
      set.v = strided<const float>(hold(floats(inputs[at.v(s)])));
      set.keys.resize(call.bands.size());
      for (size_t b = 0; b < call.bands.size(); ++b) {
        const Tensor& k = inputs[at.k(s, b)];
        if (k.defined()) set.keys[b].k = strided<const float>(hold(floats(k)));
      }
      set.length = inputs[at.v(s)].size(2);
      set.at = whole(keys.at), set.document = whole(keys.document);
      set.from = whole(keys.from), set.until = whole(keys.until);
      if (call.dropout > 0) set.name = whole(keys.name);
      a.sets.push_back(set);
    }
    if (call.dropout > 0) {
      a.keep = static_cast<float>(1 - call.dropout), a.drop_limit = kernels::drop_limit(call.dropout);
      a.seed = call.seed, a.q_name = whole(call.names.query);
      a.head_name = call.names.head.empty() ? nullptr : call.names.head.data();
    }
    a.pattern = call.shown.get();
    pairs_ = call.pairs;
    if (!pairs_ && call.shown && kernels::PairTiles::fits(a)) pairs_ = std::make_shared<kernels::PairTiles>(a);
    a.pairs = pairs_.get();
    a.lowest = call.lowest;
    if (call.table_input) {
      const auto [table, head] = pack_table(inputs[call.table_input], kernels::kAttendLog2e);
      a.table = table, a.table_head = head;
    }
    if (call.factor_input) {
      const auto [table, head] = pack_table(inputs[call.factor_input], 1);
      a.factor = table, a.factor_head = head, a.floor = call.relu ? 0 : -INFINITY;
    }
    if (call.span_input) {
      a.span = hold(inputs[call.span_input].to(at::kFloat).contiguous()).const_data_ptr<float>();
      a.ramp = static_cast<float>(call.ramp), a.own = call.own;
    }
    if (call.values_input) {
      const Tensor rows = inputs[call.values_input].to(at::kFloat).flip(0);
      a.value_bins = rows.size(0), a.value_highest = call.values_lowest + a.value_bins - 1;
      const int64_t padding = kernels::attend_padded(call.value_width) - call.value_width;
      a.value_rows = hold(at::constant_pad_nd(rows, {0, padding}).contiguous()).const_data_ptr<float>();
    }
    if (call.by_input) pack_by(call, inputs[call.by_input], inputs[call.by_input + 1]);
  }

  kernels::Attend a;
  const std::shared_ptr<const kernels::PairTiles>& pairs() const { return pairs_; }

 private:
  std::shared_ptr<const kernels::PairTiles> pairs_;
  const Tensor& hold(Tensor x) {
    held_.push_back(std::move(x));
    return held_.back();
  }
  kernels::Whole whole(const Tensor& x) {
    if (!x.defined()) return {};
    const Tensor& rows = hold(unit_rows(x));
    return {rows.const_data_ptr<int64_t>(), rows.size(0) == 1 ? 0 : rows.stride(0)};
  }
  /// The packed table and the floats from head to head.
  std::pair<const float*, int64_t> pack_table(const Tensor& given, float unit) {
    const Tensor table = given.to(at::kFloat).contiguous();  // [H or 1, distances]
    a.distances = table.size(1);
    const int64_t columns = kernels::attend_table_columns(a.distances);
    const Tensor& packed = hold(at::empty({table.size(0), columns}, table.options()));
    for (int64_t h = 0; h < table.size(0); ++h) {
      kernels::attend_pack_table(table.const_data_ptr<float>() + h * a.distances, a.distances, unit,
                                 packed.data_ptr<float>() + h * columns);
    }
    return {packed.const_data_ptr<float>(), table.size(0) == 1 ? 0 : columns};
  }
  void pack_by(const AttendCall& call, const Tensor& p, const Tensor& given) {
    const Tensor r = floats(given);  // [H, distances, c]
    a.by = strided<const float>(hold(floats(p)));
    a.by_width = r.size(2), a.by_scale = static_cast<float>(call.by_scale), a.distances = r.size(1);
    const int64_t panels = kernels::attend_panels_size(a.distances, a.by_width);
    const int64_t rows = kernels::attend_rows_size(a.distances, a.by_width);
    float* to = hold(at::empty({call.heads * (panels + rows)}, r.options())).data_ptr<float>();
    parallel_for(0, call.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h) {
        kernels::attend_pack_by(r.const_data_ptr<float>() + h * r.stride(0), r.stride(1), a.distances, a.by_width,
                                to + h * panels, to + call.heads * panels + h * rows);
      }
    });
    a.by_panels = to, a.by_rows = to + call.heads * panels;
  }

  std::vector<Tensor> held_;
};

/// Items that are worth a thread of their own, together.
int64_t grain(const kernels::Attend& a, int64_t items) {
  double keys = 0;
  for (const auto& set : a.sets) keys += static_cast<double>(set.length);
  const double work = keys * static_cast<double>(a.batch * a.heads * a.length * (a.width + a.value_width));
  return std::max<int64_t>(1, static_cast<int64_t>(1e6 * static_cast<double>(items) / std::max(work, 1.0)));
}

Read forward(AttendCall& call, const std::vector<Tensor>& inputs) {
  Described described(call, inputs);
  kernels::Attend& a = described.a;
  Read read;
  const auto options = inputs[0].options().dtype(at::kFloat);
  read.out = at::empty({a.batch, a.length, a.heads, a.value_width}, options).transpose(1, 2);
  read.lse = at::empty({a.batch, a.heads, a.length}, options);
  a.out = strided<float>(read.out), a.lse = read.lse.data_ptr<float>();
  const int64_t items = kernels::attend_forward_items(a);
  parallel_for(0, items, grain(a, items), [&](int64_t begin, int64_t end) { kernels::attend_forward(a, begin, end); });
  read.out = read.out.to(inputs[0].scalar_type());
  if (described.pairs() && described.pairs()->bytes() < (int64_t{1} << 20)) call.pairs = described.pairs();
  return read;
}

std::vector<Tensor> backward(const AttendCall& call, const std::vector<Tensor>& inputs, const Read& read,
                             const Tensor& d_out, const Tensor& d_lse, const std::vector<bool>& wanted) {
  Described described(call, inputs);
  kernels::Attend& a = described.a;
  const Tensor out = floats(read.out), lse = read.lse.contiguous();
  const Tensor g = d_out.defined() ? floats(d_out) : at::zeros_like(out);
  const Tensor g_lse = d_lse.defined() ? d_lse.to(at::kFloat).contiguous() : Tensor();
  a.out = strided<float>(out), a.lse = lse.data_ptr<float>();
  a.d_out = strided<const float>(g);
  a.d_lse = g_lse.defined() ? g_lse.const_data_ptr<float>() : nullptr;
  std::mutex lock;
  a.lock = &lock;
  std::vector<Tensor> sums(inputs.size());
  const auto sum = [&](size_t i) {
    if (!wanted[i]) return kernels::Strided<float>{};
    sums[i] = sum_like(inputs[i]);
    return strided<float>(sums[i]);
  };
  const Places at{call};
  for (size_t b = 0; b < a.bands.size(); ++b) a.bands[b].dq = sum(at.q(b));
  for (size_t s = 0; s < a.sets.size(); ++s) {
    a.sets[s].dv = sum(at.v(s));
    for (size_t b = 0; b < a.bands.size(); ++b) a.sets[s].keys[b].dk = sum(at.k(s, b));
  }
  const auto options = inputs[0].options().dtype(at::kFloat);
  Tensor d_rows, d_values;
  if (call.span_input && wanted[call.span_input]) {
    sums[call.span_input] = at::zeros({a.batch, a.heads, a.length}, options);
    a.d_span = sums[call.span_input].data_ptr<float>();
  }
  if (call.values_input && wanted[call.values_input]) {
    d_values = at::zeros({a.value_bins, kernels::attend_padded(a.value_width)}, options);
    a.d_value_rows = d_values.data_ptr<float>();
  }
  const auto sums_of_table = [&](size_t input) {
    if (!input || !wanted[input]) return Tensor();
    return at::zeros({inputs[input].size(0), kernels::attend_table_columns(a.distances)}, options);
  };
  const Tensor d_table = sums_of_table(call.table_input), d_factor = sums_of_table(call.factor_input);
  if (d_table.defined()) a.d_table = d_table.data_ptr<float>();
  if (d_factor.defined()) a.d_factor = d_factor.data_ptr<float>();
  if (call.by_input) {
    a.d_by = sum(call.by_input);
    if (wanted[call.by_input + 1]) {
      const int64_t columns = kernels::attend_table_columns(a.distances);
      d_rows = at::zeros({a.heads, columns, kernels::attend_padded(a.by_width)}, options);
      a.d_by_rows = d_rows.data_ptr<float>();
    }
  }
  const int64_t items = kernels::attend_backward_items(a);
  if (a.length > 0) {
    parallel_for(0, items, grain(a, items),
                 [&](int64_t begin, int64_t end) { kernels::attend_backward(a, begin, end); });
  }
  // Columns hold the farthest distance first.
  const auto by_distance = [&](const Tensor& x) { return x.narrow(1, kernels::kAttendMargin, a.distances).flip(1); };
  if (d_table.defined()) sums[call.table_input] = by_distance(d_table);
  if (d_values.defined()) sums[call.values_input] = d_values.narrow(1, 0, a.value_width).flip(0);
  if (d_factor.defined()) sums[call.factor_input] = by_distance(d_factor);
  if (d_rows.defined()) {
    constexpr double kLn2 = 0.6931471805599453;  // p was in units of log2
    sums[call.by_input + 1] =
        d_rows.narrow(1, kernels::kAttendMargin, a.distances).narrow(2, 0, a.by_width).flip(1).mul_(kLn2);
  }
  for (size_t i = 0; i < sums.size(); ++i)
    if (sums[i].defined()) sums[i] = sums[i].to(inputs[i].scalar_type());
  return sums;
}

}  // namespace

Read attend_kernel(const std::shared_ptr<AttendCall>& call, const std::vector<Tensor>& inputs) {
  return attend_node(call, inputs, forward, backward);
}

}  // namespace kinfolk
