// Tiles of the score matrix of the plain path of attend. Not a public header.
#pragma once
#include <numeric>
#include <utility>
#include <vector>

#include "kinfolk/ops/attend_call.h"

namespace kinfolk {

/// The inputs of a call by name, and buffers of the same places for their gradients.
struct Places {
  const AttendCall& call;
  size_t q(size_t band) const { return band; }
  size_t v(size_t set) const { return call.bands.size() + set * (1 + call.bands.size()); }
  size_t k(size_t set, size_t band) const { return v(set) + 1 + band; }
  size_t q_raw() const { return v(call.keys.size()); }
  size_t prepared() const { return q_raw() + 1; }
  size_t prepared_count() const { return std::accumulate(call.prepared.begin(), call.prepared.end(), size_t{0}); }
  std::vector<Tensor>::const_iterator end(const std::vector<Tensor>& inputs) const {
    return inputs.begin() + static_cast<int64_t>(prepared() + prepared_count());
  }
};

struct TileAt {
  int64_t row, rows;  ///< first query, number of queries
  size_t set;
  int64_t column, columns;
  Meeting meeting;
};

class Tiles {
 public:
  Tiles(const AttendCall& call, const std::vector<Tensor>& inputs)
      : call_(call),
        inputs_(inputs),
        places_{call},
        type_(inputs[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat) {}

  at::ScalarType type() const { return type_; }
  Tensor rows(const Tensor& x, const TileAt& t) const { return x.narrow(2, t.row, t.rows).to(type_); }
  Tensor columns(const Tensor& x, const TileAt& t) const { return x.narrow(2, t.column, t.columns).to(type_); }

  /// Every tile of a block of queries in which some pair may see each other.
  std::vector<TileAt> of_block(int64_t block) const;

  /// Scaled products before the score steps; also fills in what the tile needs to be masked.
  struct Scores {
    Tensor raw;                                    ///< [B, H, n, m]
    Tensor distance;                               ///< int64 [B or 1, 1, n, m], where something asked for it
    Tensor visible;                                ///< bool [B or 1, 1, n, m]; undefined: every pair
    std::vector<std::pair<size_t, Tensor>> bands;  ///< those that meet the tile, and where; undefined: everywhere
  };
  Scores scores(const TileAt& t, const std::vector<Tensor>& q) const;

  /// The score steps on a tile; `prepared` are the tensors of all steps after each other.
  Tensor steps(Tensor scores, const Tensor& q_raw, const Tensor& distance, const TileAt& t,
               const std::vector<Tensor>& prepared) const;

  /// Row of a tile's pairs in the table of values by distance: int64 [B or 1, 1, n, m]; undefined: there is none.
  Tensor value_rows(const TileAt& t) const;

  /// 1 / (1 - rate) where the weight is kept, else 0; undefined without dropout.
  Tensor kept(const TileAt& t, const Tensor& like) const;

 private:
  /// One lane where all are alike.
  Tensor lanes(const Tensor& x) const { return call_.layout.alike() ? x.narrow(0, 0, 1) : x; }

  std::vector<size_t> bands_of(size_t set, const Meeting& meeting) const;

  void see(Scores& out, const TileAt& t, const Tensor& i, const Tensor& j) const;

  const AttendCall& call_;
  const std::vector<Tensor>& inputs_;
  Places places_;
  at::ScalarType type_;
};

}  // namespace kinfolk
