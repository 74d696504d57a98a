// A model with new parts, begun from the checkpoint of another.
#pragma once
#include <string>
#include <vector>

#include "kinfolk/nn/model.h"

namespace kinfolk {

/// Tensors by name ("layers.0.branches.0.q.weight"), weights and then buffers.
struct StartedFrom {
  std::vector<std::string> taken;  ///< of the model and of the checkpoint
  std::vector<std::string> fresh;  ///< of the model alone: as they were drawn
  std::vector<std::string> left;   ///< of the checkpoint alone
};

/// Copies every tensor of the checkpoint (a run folder, or a file) that the model has under the same name. Throws Error
/// for a tensor of another shape, with both, and where no name is the same; the model is then as it was.
StartedFrom start_from(Model& model, const std::string& path);

/// "38 tensors taken; 2 new: a, b; 1 left out: c": names of long lists are cut short.
std::string describe(const StartedFrom& started);

/// These weights want no gradient from now on: an optimiser does not see them. Throws Error for a name that the model
/// lacks, and where nothing would be left to learn.
void freeze(Model& model, const std::vector<std::string>& names);

}  // namespace kinfolk
