#include "kinfolk/ops/scan_selective.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/parallel.h"
#include "kinfolk/kernels/scan_selective.h"
#include "kinfolk/ops/scan_selective_chunks.h"

namespace kinfolk {
namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// uint8 [B, L] of kernels' marks; undefined: all tokens are valid and of one document.
Tensor marks_of(const ScanLanes& lanes) {
  Tensor marks;
  if (lanes.valid.defined()) marks = lanes.valid.logical_not().to(at::kByte);
  if (const Tensor border = borders(lanes); border.defined()) {
    const Tensor first = border.to(at::kByte) * kernels::kSelectiveFirst;
    marks = marks.defined() ? marks + first : first;
  }
  return marks.defined() ? marks.contiguous() : marks;
}

/// Rows with a dense last axis; they may lie apart.
Tensor rows(const Tensor& t) { return t.stride(-1) == 1 || t.size(-1) == 1 ? t : t.contiguous(); }
kernels::SelectiveRows lane_of(const Tensor& t, int64_t b) {
  return {t.const_data_ptr<float>() + b * t.stride(0), t.stride(1)};
}

struct Given {
  Tensor x, delta, a, b, c, skip, z, bias, marks, kept;
  bool softplus, zoh;

  kernels::SelectiveSizes sizes() const { return {x.size(1), x.size(2), a.size(1), softplus, zoh}; }
  kernels::SelectiveForward lane(int64_t i, float* state, float* out) const {
    const int64_t each = kept.defined() ? kept.numel() / x.size(0) : 0;
    return {lane_of(x, i),
            lane_of(delta, i),
            z.defined() ? lane_of(z, i) : kernels::SelectiveRows{nullptr, 0},
            lane_of(b, i),
            lane_of(c, i),
            a.const_data_ptr<float>(),
            skip.const_data_ptr<float>(),
            bias.const_data_ptr<float>(),
            marks.defined() ? marks.const_data_ptr<uint8_t>() + i * x.size(1) : nullptr,
            state,
            out,
            kept.defined() ? kept.mutable_data_ptr<float>() + i * each : nullptr};
  }
};

/// each(part, from, until, scratch): the channels in parts, each on a thread of its own.
template <class Each>
void over_channels(const kernels::SelectiveSizes& sizes, int64_t parts, Each&& each) {
  const int64_t blocks = sizes.channels / 16;
  parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; part++) {
      const int64_t from = part * blocks / parts * 16, until = (part + 1) * blocks / parts * 16;
      const auto floats = static_cast<size_t>(kernels::scan_selective_scratch(sizes, from, until));
      const c10::DataPtr scratch = c10::GetCPUAllocator()->allocate(floats * sizeof(float));
      each(part, from, until, static_cast<float*>(scratch.get()));
    }
  });
}
int64_t parts_of(const kernels::SelectiveSizes& sizes) {
  return std::max<int64_t>(1, std::min<int64_t>(at::get_num_threads(), sizes.channels / 16));
}

struct FusedSelective : torch::autograd::Function<FusedSelective> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& delta, const Tensor& a,
                               const Tensor& b, const Tensor& c, const Tensor& skip, const std::optional<Tensor>& z,
                               const Tensor& bias, const Tensor& initial, const std::optional<Tensor>& marks,
                               bool softplus, bool zoh, bool keeps, bool reuse) {
    Given g{rows(x),
            rows(delta),
            a.contiguous(),
            rows(b),
            rows(c),
            skip.contiguous(),
            z ? rows(*z) : Tensor(),
            bias.contiguous(),
            marks ? *marks : Tensor(),
            {},
            softplus,
            zoh};
    const kernels::SelectiveSizes sizes = g.sizes();
    const int64_t B = x.size(0), L = x.size(1), E = x.size(2), N = a.size(1);
    Tensor state = reuse ? initial : initial.clone(at::MemoryFormat::Contiguous),
           out = at::empty({B, L, E}, x.options());
    const int64_t chunks = (L + kernels::kSelectiveTokens - 1) / kernels::kSelectiveTokens;
    if (keeps) g.kept = at::empty({B, chunks, E, N}, x.options());
    float *ps = state.mutable_data_ptr<float>(), *po = out.mutable_data_ptr<float>();
    over_channels(sizes, parts_of(sizes), [&](int64_t, int64_t from, int64_t until, float* scratch) {
      for (int64_t i = 0; i < B; i++) {
        kernels::scan_selective_forward(sizes, g.lane(i, ps + i * E * N, po + i * L * E), from, until, scratch);
      }
    });
    ctx->saved_data["softplus"] = softplus;
    ctx->saved_data["zoh"] = zoh;
    if (keeps) ctx->save_for_backward({g.x, g.delta, g.a, g.b, g.c, g.skip, g.z, g.bias, g.marks, g.kept});
    return {out, state};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (at::GradMode::is_enabled()) fail("[scan_selective] expected one derivative; found a request for the second");
    const variable_list s = ctx->get_saved_variables();
    const Given g{s[0],
                  s[1],
                  s[2],
                  s[3],
                  s[4],
                  s[5],
                  s[6],
                  s[7],
                  s[8],
                  s[9],
                  ctx->saved_data["softplus"].toBool(),
                  ctx->saved_data["zoh"].toBool()};
    const kernels::SelectiveSizes sizes = g.sizes();
    const int64_t B = g.x.size(0), L = g.x.size(1), E = g.x.size(2), N = g.a.size(1), parts = parts_of(sizes);
    const auto as = g.x.options();
    const Tensor go = grads[0].defined() ? grads[0].contiguous() : at::zeros({B, L, E}, as);
    Tensor gs = grads[1].defined() ? grads[1].clone(at::MemoryFormat::Contiguous) : at::zeros({B, E, N}, as);
    Tensor gx = at::empty({B, L, E}, as), gdelta = at::empty_like(gx), gz = g.z.defined() ? at::empty_like(gx) : gx;
    Tensor ga = at::zeros({E, N}, as), gskip = at::zeros({E}, as), gbias = at::zeros({E}, as);
    Tensor gb = at::zeros({parts, B, L, N}, as), gc = at::zeros_like(gb);
    const float* pg = go.const_data_ptr<float>();
    float *ps = gs.mutable_data_ptr<float>(), *px = gx.mutable_data_ptr<float>(),
          *pd = gdelta.mutable_data_ptr<float>(), *pz = g.z.defined() ? gz.mutable_data_ptr<float>() : nullptr,
          *pa = ga.mutable_data_ptr<float>(), *pk = gskip.mutable_data_ptr<float>(),
          *pi = gbias.mutable_data_ptr<float>(), *pb = gb.mutable_data_ptr<float>(), *pc = gc.mutable_data_ptr<float>();
    over_channels(sizes, parts, [&](int64_t part, int64_t from, int64_t until, float* scratch) {
      for (int64_t i = 0; i < B; i++) {
        const int64_t row = i * L * E, shared = (part * B + i) * L * N;
        kernels::scan_selective_backward(sizes,
                                         {g.lane(i, nullptr, nullptr), pg + row, ps + i * E * N, px + row, pd + row,
                                          pz ? pz + row : nullptr, pa, pk, pi, pb + shared, pc + shared},
                                         from, until, scratch);
      }
    });
    return {gx, gdelta, ga, gb.sum(0), gc.sum(0), gskip, g.z.defined() ? gz : Tensor(), gbias, gs, {}, {}, {}, {}, {}};
  }
};

void check(const SelectiveScan& s) {
  const auto fits = [](const Tensor& t, at::IntArrayRef sizes) { return !t.defined() || t.sizes() == sizes; };
  if (s.x.dim() != 3 || s.a.dim() != 2) {
    fail("[scan_selective] expected x [B, L, E] and A [E, N]; found ", s.x.sizes(), ", ", s.a.sizes());
  }
  const int64_t B = s.x.size(0), L = s.x.size(1), E = s.x.size(2), N = s.a.size(1);
  if (!fits(s.delta, {B, L, E}) || !fits(s.z, {B, L, E}) || !fits(s.b, {B, L, N}) || !fits(s.c, {B, L, N}) ||
      !fits(s.skip, {E}) || !fits(s.bias, {E}) || !fits(s.state, {B, E, N}) || s.a.size(0) != E) {
    fail("[scan_selective] expected delta, z like x ", s.x.sizes(),
         ", A [E, N], B, C [B, L, N], skip, bias [E] and state "
         "[B, E, N]; found ",
         s.delta.sizes(), ", ", s.a.sizes(), ", ", s.b.sizes(), ", ", s.c.sizes());
  }
}

/// The scan in its own type; what may be undefined is filled in.
SelectiveScan ready(const SelectiveScan& s) {
  check(s);
  const at::ScalarType type = scan_type(s.x);
  const auto as = s.x.options().dtype(type).requires_grad(false);
  const auto or_zeros = [&](const Tensor& t, at::IntArrayRef sizes) {
    return t.defined() ? t.to(type) : at::zeros(sizes, as);
  };
  SelectiveScan r = s;
  for (Tensor* t : {&r.x, &r.delta, &r.a, &r.b, &r.c}) *t = t->to(type);
  if (r.z.defined()) r.z = r.z.to(type);
  const int64_t E = s.x.size(2);
  r.skip = or_zeros(s.skip, {E});
  r.bias = or_zeros(s.bias, {E});
  r.state = or_zeros(s.state, {s.x.size(0), E, s.a.size(1)});
  return r;
}

Tensor mask_tokens(const Tensor& t, const ScanLanes& lanes) {
  return lanes.valid.defined() && t.defined() ? t.masked_fill(lanes.valid.logical_not().unsqueeze(-1), 0) : t;
}

/// What the recurrence itself needs; invalid tokens have d = 0 and zero rows.
SelectiveCore core_of(const SelectiveScan& r) {
  SelectiveCore core;
  const Tensor raw = mask_tokens(r.delta, r.lanes) + r.bias;
  // softplus(x) = max(x, 0) + log1p(exp(-|x|))
  core.step = mask_tokens(r.softplus ? raw.clamp_min(0) + at::log1p(at::exp(-raw.abs())) : raw, r.lanes);
  core.x = mask_tokens(r.x, r.lanes);
  core.b = mask_tokens(r.b, r.lanes);
  core.c = mask_tokens(r.c, r.lanes);
  core.a = r.a;
  core.state = r.state;
  core.zoh = r.zoh;
  if (const Tensor border = borders(r.lanes); border.defined())
    core.goes_on = border.logical_not().to(r.x.scalar_type());
  return core;
}

SelectiveScanned finish(const SelectiveScan& s, const SelectiveScan& r, const SelectiveCore& core, const Tensor& y,
                        const Tensor& state) {
  Tensor out = y + core.x * r.skip;
  if (r.z.defined()) out = out * at::silu(mask_tokens(r.z, r.lanes));
  return {out.to(s.x.scalar_type()), state};
}

}  // namespace

SelectiveScanned scan_selective(const SelectiveScan& scan, int64_t chunk) {
  const c10::impl::ExcludeDispatchKeyGuard own_type(c10::autocast_dispatch_keyset);
  if (chunk < 1) fail("[scan.chunk] expected at least 1; found ", chunk);
  SelectiveScan r = ready(scan);
  const int64_t B = r.x.size(0), L = r.x.size(1), E = r.x.size(2);
  if (L == 0 || B == 0) return {at::zeros({B, L, E}, scan.x.options().requires_grad(false)), r.state};
  if (!scan.plain && r.x.is_cpu() && r.x.scalar_type() == at::kFloat) {
    const int64_t missing = (16 - E % 16) % 16;
    if (missing > 0) {  // channels of zeros beside the others
      for (Tensor* t : {&r.x, &r.delta, &r.z, &r.skip, &r.bias}) {
        if (t->defined()) *t = at::constant_pad_nd(*t, {0, missing});
      }
      r.a = at::constant_pad_nd(r.a, {0, 0, 0, missing});
      r.state = at::constant_pad_nd(r.state, {0, 0, 0, missing});
    }
    const Tensor marks = marks_of(r.lanes);
    const auto maybe = [](const Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; };
    bool keeps = false;
    for (const Tensor& t : {r.x, r.delta, r.a, r.b, r.c, r.skip, r.z, r.bias, r.state}) {
      keeps = keeps || (t.defined() && t.requires_grad());
    }
    keeps = keeps && at::GradMode::is_enabled();
    // A state that was made here belongs to nobody else either.
    const bool reuse = !keeps && r.state.is_contiguous() && (scan.reuse || !r.state.is_same(scan.state));
    const variable_list done = FusedSelective::apply(r.x, r.delta, r.a, r.b, r.c, r.skip, maybe(r.z), r.bias, r.state,
                                                     maybe(marks), r.softplus, r.zoh, keeps, reuse);
    const Tensor state = reuse ? r.state : done[1];
    return {first_of(done[0], 2, E).to(scan.x.scalar_type()), first_of(state, 1, E)};
  }
  const SelectiveCore core = core_of(r);
  const Scanned done = scan_selective_chunks(core, chunk);
  return finish(scan, r, core, done.out, done.state);
}

SelectiveScanned scan_selective_steps(const SelectiveScan& scan) {
  const c10::impl::ExcludeDispatchKeyGuard own_type(c10::autocast_dispatch_keyset);
  const SelectiveScan r = ready(scan);
  const int64_t B = r.x.size(0), L = r.x.size(1), E = r.x.size(2);
  if (L == 0) return {at::zeros({B, L, E}, scan.x.options().requires_grad(false)), r.state};
  const SelectiveCore core = core_of(r);
  std::vector<Tensor> y;
  Tensor state = core.state;
  for (int64_t t = 0; t < L; t++) {
    const Tensor step = core.step.select(1, t).unsqueeze(-1), power = step * core.a;  // [B, E, N]
    Tensor u = core.x.select(1, t).unsqueeze(-1) * core.b.select(1, t).unsqueeze(1) * step;
    if (core.zoh) u = u * selective_quotient(power);
    if (core.goes_on.defined()) state = state * core.goes_on.select(1, t).view({B, 1, 1});
    state = power.exp() * state + u;
    y.push_back((state * core.c.select(1, t).unsqueeze(1)).sum(-1));
  }
  return finish(scan, r, core, at::stack(y, 1), state);
}

}  // namespace kinfolk
