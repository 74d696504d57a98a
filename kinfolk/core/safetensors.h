// Tensors by name in one file: the safetensors format (8 bytes header length, a JSON header, the raw little-endian
// data).
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace kinfolk {

struct TensorFile {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;  // the header's "__metadata__"
};

/// Reads every tensor into memory of its own (CPU, contiguous). Types: F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL.
/// Nothing in the file is trusted: lengths, shapes, offsets, overlaps, gaps, duplicate names and the bytes of booleans
/// are checked. Every fault throws Error "[checkpoint] PATH: expected ...; found ...", one line; a file of another kind
/// gives its own word for `checkpoint`.
TensorFile read_tensors(const std::string& path, const std::string& kind = "checkpoint");

/// The metadata alone; the header is checked as above, the data are not read.
std::map<std::string, std::string> read_metadata(const std::string& path);

/// Writes the same bytes for the same content: keys sorted, data by falling element size and then by name (so that
/// every tensor is aligned), header padded to 8 bytes. The file appears whole or not at all (see FileWriter). Throws
/// Error for a type the format cannot hold, for text that is not UTF-8, and for whatever stops the disk.
void write_tensors(const std::string& path, const TensorFile& file);

}  // namespace kinfolk
