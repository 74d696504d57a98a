// From a config.json of transformers to a recipe, a size, and where each of its tensors goes. For tests only.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/model.h"

namespace kinfolk::hf {

/// One of their tensors: the rows of these parameters of ours, one after another.
struct Where {
  std::vector<std::string> ours;
  bool transposed = false;  ///< theirs is [in, out]
};

struct Imported {
  std::string why_not;  ///< empty: the recipe stands for the model
  std::string recipe;
  Size size;
  std::map<std::string, Where> names;
  std::set<std::string> unused;  ///< tables that ours computes
  std::set<std::string> zeros;   ///< ours that theirs does not have, left at zero
  bool embedding_shown = true;   ///< out.hidden.0 enters the first layer; otherwise it leaves it, and so on
};

/// A norm or a linear map: weight and bias of the same names.
inline void map_pair(Imported& to, const std::string& theirs, const std::string& ours, bool transposed = false) {
  to.names[theirs + ".weight"] = {{ours + ".weight"}, transposed};
  to.names[theirs + ".bias"] = {{ours + ".bias"}};
}

inline Imported import_gpt2(const nlohmann::json& config) {
  Imported to;
  const int64_t width = config.at("n_embd"), heads = config.at("n_head");
  to.size.depth = config.at("n_layer"), to.size.width = width, to.size.heads = heads;
  to.size.feed = config.at("n_inner").is_null() ? 4 * width : config.at("n_inner").get<int64_t>();
  to.size.vocabulary = config.at("vocab_size"), to.size.context = config.at("n_positions");
  const std::string activation = config.at("activation_function");
  if (activation != "gelu_new" && activation != "relu") to.why_not = "activation " + activation;
  to.recipe = "input = { kind = \"tokens\", position = \"learned\" }\n";
  for (int64_t i = 0; i < to.size.depth; ++i) {
    double scale = 1 / std::sqrt(static_cast<double>(width / heads));
    if (config.at("scale_attn_by_inverse_layer_idx").get<bool>()) scale /= static_cast<double>(i + 1);
    to.recipe += text(
        "[[layers]]\n[[layers.branches]]\nkind = \"attention\"\nbias = true\nscale = ", write_toml_value(Value(scale)),
        "\n[[layers.branches]]\nkind = \"mlp\"\nactivation = \"", activation == "relu" ? "relu" : "gelu_tanh", "\"\n");
    const std::string theirs = text("transformer.h.", i, "."), ours = text("layers.", i, ".");
    const std::string attention = ours + "branches.0.";
    map_pair(to, theirs + "ln_1", ours + "before.0");
    map_pair(to, theirs + "ln_2", ours + "before.1");
    to.names[theirs + "attn.c_attn.weight"] = {{attention + "q.weight", attention + "k.weight", attention + "v.weight"},
                                               true};
    to.names[theirs + "attn.c_attn.bias"] = {{attention + "q.bias", attention + "k.bias", attention + "v.bias"}};
    map_pair(to, theirs + "attn.c_proj", attention + "out", true);
    map_pair(to, theirs + "mlp.c_fc", ours + "branches.1.in", true);
    map_pair(to, theirs + "mlp.c_proj", ours + "branches.1.out", true);
  }
  map_pair(to, "transformer.ln_f", "norm");
  to.names["transformer.wte.weight"] = {{"input.table"}};
  to.names["transformer.wpe.weight"] = {{"input.position.table"}};
  return to;
}

/// The step of a LLaMA for a call of this length. Where theirs depends on the length of the call and ours on the
/// position of the query, the step stands for theirs at this one length.
inline std::string llama_rotation(const nlohmann::json& config, int64_t length, std::string& why_not) {
  const auto& scaling = config.at("rope_scaling");
  const auto number = [](double x) { return write_toml_value(Value(x)); };
  const std::string base = ", base = " + number(config.at("rope_theta").get<double>());
  if (scaling.is_null()) return "{ kind = \"rope\"" + base + " }";
  const std::string type = scaling.at("rope_type");
  const double factor = scaling.at("factor");
  const int64_t limit = config.at("max_position_embeddings");
  const int64_t trained = scaling.value("original_max_position_embeddings", limit);
  const std::string scaled = text(base, ", factor = ", number(factor));
  if (type == "linear") return "{ kind = \"rope_pi\"" + scaled + " }";
  if (type == "yarn") return text("{ kind = \"yarn\", ramp = \"code\", trained = ", trained, scaled, " }");
  if (type == "llama3") {
    return text("{ kind = \"yarn\", temperature = false, trained = ", trained,
                ", alpha = ", number(scaling.at("low_freq_factor").get<double>()),
                ", beta = ", number(scaling.at("high_freq_factor").get<double>()), scaled, " }");
  }
  if (type == "dynamic") {
    const double s = factor * static_cast<double>(std::max(length, limit)) / static_cast<double>(limit) - (factor - 1);
    return text("{ kind = \"rope_ntk\", factor = ", number(s), base, " }");
  }
  if (type == "longrope") {
    std::string factors;
    for (const double f : scaling.at(length > limit ? "long_factor" : "short_factor")) {
      factors += (factors.empty() ? "" : ", ") + number(f);
    }
    return text("{ kind = \"longrope\", trained = ", limit, ", short_factor = [", factors, "], long_factor = [",
                factors, "]", scaled, " }");
  }
  why_not = "rope_scaling " + scaling.dump();
  return "\"rope\"";
}

inline Imported import_llama(const nlohmann::json& config, int64_t length) {
  Imported to;
  to.size.depth = config.at("num_hidden_layers"), to.size.width = config.at("hidden_size");
  to.size.heads = config.at("num_attention_heads"), to.size.vocabulary = config.at("vocab_size");
  to.size.context = config.at("max_position_embeddings");
  to.size.feed = 3 * config.at("intermediate_size").get<int64_t>();  // glu takes 2/3 of ratio * feed
  const std::string rotation = llama_rotation(config, length, to.why_not);
  if (config.at("hidden_act") != "silu") to.why_not = "hidden_act " + config.at("hidden_act").dump();
  if (config.at("rms_norm_eps").get<double>() != 1e-5) to.why_not = "rms_norm_eps other than 1e-5";
  if (config.at("attention_bias").get<bool>() || config.at("mlp_bias").get<bool>()) to.why_not = "biases";
  const bool tied = config.at("tie_word_embeddings");
  to.recipe = text("head = { kind = \"lm\", tied = ", tied ? "true" : "false", ", norm_kind = \"rms\" }\n",
                   "[[layers]]\nrepeat = \"all\"\nnorm_kind = \"rms\"\n[[layers.branches]]\nkind = \"attention\"\n",
                   "groups = ", config.at("num_key_value_heads").get<int64_t>(),
                   "\nhead_width = ", config.at("head_dim").get<int64_t>(), "\nqk = [", rotation,
                   "]\n[[layers.branches]]\nkind = \"glu\"\nratio = 0.5\n");
  for (int64_t i = 0; i < to.size.depth; ++i) {
    const std::string theirs = text("model.layers.", i, "."), ours = text("layers.", i, ".");
    to.names[theirs + "input_layernorm.weight"] = {{ours + "before.0.weight"}};
    to.names[theirs + "post_attention_layernorm.weight"] = {{ours + "before.1.weight"}};
    for (const char* which : {"q", "k", "v"}) {
      to.names[theirs + "self_attn." + which + "_proj.weight"] = {{ours + "branches.0." + which + ".weight"}};
    }
    to.names[theirs + "self_attn.o_proj.weight"] = {{ours + "branches.0.out.weight"}};
    to.names[theirs + "mlp.gate_proj.weight"] = {{ours + "branches.1.gate.weight"}};
    to.names[theirs + "mlp.up_proj.weight"] = {{ours + "branches.1.in.weight"}};
    to.names[theirs + "mlp.down_proj.weight"] = {{ours + "branches.1.out.weight"}};
  }
  to.names["model.norm.weight"] = {{"norm.weight"}};
  to.names["model.embed_tokens.weight"] = {{"input.table"}};
  to.names["lm_head.weight"] = {{"head.weight"}};
  return to;
}

/// The segments of the case are those of its run: 8 tokens.
inline Imported import_transfo_xl(const nlohmann::json& config, int64_t segment) {
  Imported to;
  to.size.depth = config.at("n_layer"), to.size.width = config.at("d_model"), to.size.heads = config.at("n_head");
  to.size.feed = config.at("d_inner"), to.size.vocabulary = config.at("vocab_size");
  if (!config.at("cutoffs").empty() || config.at("div_val") != 1) to.why_not = "an adaptive softmax with clusters";
  if (config.at("attn_type") != 0) to.why_not = "attn_type other than 0";
  if (!config.at("untie_r").get<bool>()) to.why_not = "u and v shared by the layers";
  if (config.at("same_length").get<bool>()) to.why_not = "same_length";
  const bool before = config.at("pre_lnorm");
  to.recipe = text("input = { kind = \"tokens\", scale = true }\n",
                   "head = { kind = \"lm\", bias = true, norm = \"none\" }\n[[layers]]\nrepeat = \"all\"\nnorm = \"",
                   before ? "before" : "after",
                   "\"\n[[layers.branches]]\nkind = \"attention\"\nhead_width = ", config.at("d_head").get<int64_t>(),
                   "\nqk = [\"xl_bias\"]\nscore = [{ kind = \"xl\", clamp = ",
                   std::max<int64_t>(0, config.at("clamp_len").get<int64_t>()),
                   " }]\nmemory = { kind = \"segment\", start = \"zeros\", segment = ", segment,
                   ", memory = ", config.at("mem_len").get<int64_t>(),
                   " }\n[[layers.branches]]\nkind = \"mlp\"\nactivation = \"relu\"\n");
  const std::string norm = before ? "before." : "after.";
  for (int64_t i = 0; i < to.size.depth; ++i) {
    const std::string theirs = text("transformer.layers.", i, "."), ours = text("layers.", i, ".");
    const std::string attention = ours + "branches.0.", their_attention = theirs + "dec_attn.";
    to.names[their_attention + "qkv_net.weight"] = {
        {attention + "q.weight", attention + "k.weight", attention + "v.weight"}};
    to.names[their_attention + "o_net.weight"] = {{attention + "out.weight"}};
    to.names[their_attention + "r_net.weight"] = {{attention + "score.0.r.weight"}};
    to.names[their_attention + "r_w_bias"] = {{attention + "qk.0.u"}};
    to.names[their_attention + "r_r_bias"] = {{attention + "score.0.v"}};
    map_pair(to, their_attention + "layer_norm", ours + norm + "0");
    map_pair(to, theirs + "pos_ff.CoreNet.0", ours + "branches.1.in");
    map_pair(to, theirs + "pos_ff.CoreNet.3", ours + "branches.1.out");
    map_pair(to, theirs + "pos_ff.layer_norm", ours + norm + "1");
  }
  to.names["transformer.word_emb.emb_layers.0.weight"] = {{"input.table"}};
  to.names["crit.out_layers.0.bias"] = {{"head.bias"}};
  to.unused = {"transformer.pos_emb.inv_freq"};
  return to;
}

/// Trunk of MPT: ALiBi, no biases; the norms have none either, so ours stay at zero.
inline Imported import_mpt(const nlohmann::json& config) {
  Imported to;
  const auto& attention = config.at("attn_config");
  const int64_t heads = config.at("n_heads");
  to.size.depth = config.at("n_layers"), to.size.width = config.at("d_model"), to.size.heads = heads;
  to.size.feed = config.at("expansion_ratio").get<int64_t>() * to.size.width;
  to.size.vocabulary = config.at("vocab_size"), to.size.context = config.at("max_seq_len");
  if (!attention.at("alibi").get<bool>() || attention.at("alibi_bias_max") != 8) to.why_not = "another bias than ALiBi";
  if (!attention.at("clip_qkv").is_null() || attention.at("qk_ln").get<bool>())
    to.why_not = "clipped or normalised q, k";
  if (!config.at("no_bias").get<bool>()) to.why_not = "biases";
  if ((heads & (heads - 1)) != 0) to.why_not = "its own slopes for a number of heads that is no power of two";
  to.recipe =
      "[[layers]]\nrepeat = \"all\"\n[[layers.branches]]\nkind = \"attention\"\nscore = [\"alibi\"]\n"
      "[[layers.branches]]\nkind = \"mlp\"\nactivation = \"gelu\"\nbias = false\n";
  const auto norm = [&](const std::string& theirs, const std::string& ours) {
    to.names[theirs + ".weight"] = {{ours + ".weight"}};
    to.zeros.insert(ours + ".bias");
  };
  for (int64_t i = 0; i < to.size.depth; ++i) {
    const std::string theirs = text("transformer.blocks.", i, "."), ours = text("layers.", i, ".");
    norm(theirs + "norm_1", ours + "before.0");
    norm(theirs + "norm_2", ours + "before.1");
    const std::string branch = ours + "branches.0.";
    to.names[theirs + "attn.Wqkv.weight"] = {{branch + "q.weight", branch + "k.weight", branch + "v.weight"}};
    to.names[theirs + "attn.out_proj.weight"] = {{branch + "out.weight"}};
    to.names[theirs + "ffn.up_proj.weight"] = {{ours + "branches.1.in.weight"}};
    to.names[theirs + "ffn.down_proj.weight"] = {{ours + "branches.1.out.weight"}};
  }
  norm("transformer.norm_f", "norm");
  to.names["transformer.wte.weight"] = {{"input.table"}};
  return to;
}

/// Mamba and Mamba-2: layers of one branch; their in_proj, conv1d and x_proj have our order of rows.
inline Imported import_mamba(const nlohmann::json& config) {
  Imported to;
  const bool second = config.at("model_type") == "mamba2";
  to.embedding_shown = false;
  to.size.depth = config.at("num_hidden_layers"), to.size.width = config.at("hidden_size");
  to.size.vocabulary = config.at("vocab_size"), to.size.heads = 1;
  if (config.at("use_bias").get<bool>() || !config.at("use_conv_bias").get<bool>()) to.why_not = "other biases";
  if (config.at("hidden_act") != "silu") to.why_not = "hidden_act " + config.at("hidden_act").dump();
  if (config.at("layer_norm_epsilon").get<double>() != 1e-5) to.why_not = "layer_norm_epsilon other than 1e-5";
  const bool tied = config.value("tie_word_embeddings", true);
  to.recipe = text("head = { kind = \"lm\", tied = ", tied ? "true" : "false", ", norm_kind = \"rms\" }\n",
                   "[[layers]]\nrepeat = \"all\"\nnorm_kind = \"rms\"\n[[layers.branches]]\nkind = \"",
                   second ? "mamba2" : "mamba", "\"\nexpand = ", config.at("expand").get<int64_t>(),
                   "\nstates = ", config.at("state_size").get<int64_t>(),
                   "\nconv = ", config.at("conv_kernel").get<int64_t>(), "\n");
  if (second) {
    if (!config.at("rms_norm").get<bool>()) to.why_not = "no norm of the output";
    to.recipe += text("heads = ", config.at("num_heads").get<int64_t>(),
                      "\ngroups = ", config.at("n_groups").get<int64_t>(), "\n");
  } else {
    to.recipe += text("rank = ", config.at("time_step_rank").get<int64_t>(), "\n");
  }
  for (int64_t i = 0; i < to.size.depth; ++i) {
    const std::string theirs = text("backbone.layers.", i, "."), ours = text("layers.", i, ".");
    const auto same = [&](const char* a, const char* b) {
      to.names[theirs + "mixer." + a] = {{ours + "branches.0." + b}};
    };
    to.names[theirs + "norm.weight"] = {{ours + "before.0.weight"}};
    same("in_proj.weight", "in.weight");
    same("conv1d.weight", "conv");
    same("conv1d.bias", "conv_bias");
    same("D", "skip");
    same("out_proj.weight", "out.weight");
    if (second) {
      same("dt_bias", "step_bias");
      same("A_log", "rate_log");
      same("norm.weight", "norm_weight");
    } else {
      same("x_proj.weight", "select.weight");
      same("dt_proj.weight", "step.weight");
      same("dt_proj.bias", "step.bias");
      same("A_log", "a_log");
    }
  }
  to.names["backbone.norm_f.weight"] = {{"norm.weight"}};
  to.names["backbone.embeddings.weight"] = {{"input.table"}};
  to.names["lm_head.weight"] = {{"head.weight"}};
  return to;
}

inline Imported import_config(const nlohmann::json& config, int64_t segment, int64_t length) {
  const std::string type = config.at("model_type");
  if (type == "gpt2") return import_gpt2(config);
  if (type == "llama") return import_llama(config, length);
  if (type == "mpt") return import_mpt(config);
  if (type == "mamba" || type == "mamba2") return import_mamba(config);
  if (type == "transfo-xl") return import_transfo_xl(config, segment);
  Imported to;
  to.why_not = "no recipe for " + type;
  return to;
}

/// The inputs that the segment memory of a layer's attention holds, [B, C, D]: the state's own tensor.
inline Tensor remembered(const State& state, int64_t layer) {
  return state.parts.at("layer." + std::to_string(layer)).parts.at("branch.0").tensors.at("x");
}

}  // namespace kinfolk::hf
