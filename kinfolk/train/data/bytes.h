// Bytes of any file or folder, and the part of them that validates.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kinfolk/train/data/recall_task.h"

namespace kinfolk {

/// One file: bytes [begin, end) of its text.
struct Document {
  std::string path;
  int64_t begin = 0, end = 0;
};

/// Documents one after the other, byte by byte as they lie in the files.
struct Text {
  std::vector<uint8_t> bytes;
  std::vector<Document> documents;  ///< in order, without gaps

  int64_t size() const { return static_cast<int64_t>(bytes.size()); }
  std::span<const uint8_t> document(size_t i) const {
    const auto& d = documents.at(i);
    return std::span(bytes).subspan(static_cast<size_t>(d.begin), static_cast<size_t>(d.end - d.begin));
  }
  uint64_t fingerprint() const;  ///< FNV-1a of the bytes and the borders
};

/// What a text of images holds: one image a document, pixels row after row.
struct ImageForm {
  int64_t rows = 0, columns = 0;
  int64_t levels = 0;  ///< of a pixel; the start token is the number after the highest

  bool any() const { return rows > 0; }  ///< false: a text
  int64_t pixels() const { return rows * columns; }
  bool operator==(const ImageForm&) const = default;
};

struct Corpus {
  std::string path;
  Text train, valid;
  std::string split;      ///< how it was split, in words
  ImageForm images = {};   ///< where it holds images
  RecallTask recall = {};  ///< where it is a task: the text is its description

  const char* unit() const { return recall.any() ? "answer" : images.any() ? "pixel" : "byte"; }  ///< of bits per byte
};

struct ReadLimits {
  int64_t at_least = 1;
  int64_t at_most = 0;  ///< 0: a quarter of the machine's memory
};

/// A file, or every file under a folder: recursive, sorted by path byte by byte, hidden names, empty files and what is
/// neither file nor folder skipped, symbolic links followed, no folder twice. Throws UsageError
/// "[data] PATH: expected ...; found ..." for what cannot be read, has nothing, too little, or too much.
Text read_text(const std::string& path, const ReadLimits& limits = {});

/// Splits a text that `valid_path` (empty: none) or else this rule divides:
///   one document    its last 5 % validate;
///   several         the last documents, as few as hold 5 % of all bytes; when these hold more than 20 %, the one
///                   document whose size is nearest to 10 % of all (of equals the last).
/// Never all of it, never nothing. Images and tasks (see images.h, recall.h) are read as
/// such.
Corpus read_corpus(const std::string& path, const std::string& valid_path = "", const ReadLimits& limits = {});

}  // namespace kinfolk
