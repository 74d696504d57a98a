// The lists: every component by its name in a recipe, one list a kind. A new component is one line here.
#include "kinfolk/nn/depth/once.h"
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/feed/glu.h"
#include "kinfolk/nn/feed/mlp.h"
#include "kinfolk/nn/head/lm.h"
#include "kinfolk/nn/input/positions.h"
#include "kinfolk/nn/input/tokens.h"
#include "kinfolk/nn/residual/add.h"

namespace kinfolk {

template <>
Registry<Branch>& registry<Branch>() {
  static Registry<Branch> list = [] {
    Registry<Branch> kin("branch");
    kin.add<Mlp>("mlp", "two matrices and a non-linearity (Vaswani et al. 2017)");
    kin.add<Glu>("glu", "gated feed-forward, SwiGLU by default (Shazeer 2020)");
    kin.add<PositionBranch>("position", "positions added in every layer (Al-Rfou et al. 2018)");
    return kin;
  }();
  return list;
}

template <>
Registry<QkStep>& registry<QkStep>() {
  static Registry<QkStep> list = [] {
    Registry<QkStep> kin("qk step");
    return kin;
  }();
  return list;
}

template <>
Registry<Memory>& registry<Memory>() {
  static Registry<Memory> list = [] {
    Registry<Memory> kin("memory");
    return kin;
  }();
  return list;
}

template <>
Registry<Residual>& registry<Residual>() {
  static Registry<Residual> list = [] {
    Registry<Residual> kin("residual");
    kin.add<Add>("add", "the sum (He et al. 2016)");
    return kin;
  }();
  return list;
}

template <>
Registry<Depth>& registry<Depth>() {
  static Registry<Depth> list = [] {
    Registry<Depth> kin("depth");
    kin.add<Once>("once", "every layer once, in order (Vaswani et al. 2017)");
    return kin;
  }();
  return list;
}

template <>
Registry<Input>& registry<Input>() {
  static Registry<Input> list = [] {
    Registry<Input> kin("input");
    kin.add<Tokens>("tokens", "token embedding, with or without positions (Vaswani et al. 2017)");
    return kin;
  }();
  return list;
}

template <>
Registry<Head>& registry<Head>() {
  static Registry<Head> list = [] {
    Registry<Head> kin("head");
    kin.add<LanguageModel>("lm", "scores of the next token (Press and Wolf 2017 for the shared table)");
    return kin;
  }();
  return list;
}

}  // namespace kinfolk
