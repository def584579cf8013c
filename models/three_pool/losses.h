// The four terms of the loss, up to their denominators, and for any part of rows and sites: ranks
// and reference put the same pieces together.
//
//   faith   || weight - (V U)^T ||^2 of all sites                                      / number of
//   weights imp     sum over components of S + beta S log2(1 + S), S = sum of upper^p          /
//   number of positions stoch   error of the target with one site masked at random, summed over
//   sites      / sites / errors ppgd    error of the target with all sites masked by sources that
//   make it large    / errors
//
// S is the sum over the whole batch: the term is not a mean over rows.
#pragma once

#include <retape/dist/topology.h>
#include <retape/recompute.h>

#include <three_pool/components.h>
#include <three_pool/sources.h>

#include <memory>

namespace three_pool {

// Sites from `begin`, up to but without `end`.
struct SiteRange {
  size_t begin = 0, end = 0;
  size_t size() const { return end - begin; }
};

Tensor faith_error(const Target& target, const Components& components, SiteRange sites);

Tensor importance_sums(const Tensor& upper, const Config& config, int step);  // [sum of components]
Tensor importance(const Tensor& sums, const Config& config);  // of sums over the whole batch

// Errors of the target with masked sites against the target as it is, on some rows: sums of what
// Config::error says.
class Reconstruction {
 public:
  Reconstruction(const Target& target, const Config& config, Tensor x);
  ~Reconstruction();  // after backward
  Reconstruction(const Reconstruction&) = delete;
  Reconstruction& operator=(const Reconstruction&) = delete;

  // `lower` has the columns of `sites`, here and below. Masks are drawn for the global rows `rows`.
  Tensor stoch_error(
      const Components& components,
      const Tensor& lower,
      SiteRange sites,
      uint64_t seed,
      int step,
      retape::dist::RowRange rows);
  Tensor ppgd_error(const Components& components, const Tensor& lower, const Sources& sources);

  int64_t count() const {
    return output_.size(0) * config_.errors_in_a_row();
  }  // that an error is a sum of

 private:
  Tensor error(const Components& components, const std::map<size_t, Mask>& masks);
  Tensor error(const Tensor& output) const;

  const Target& target_;
  const Config& config_;
  Tensor x_, output_;
  std::vector<std::unique_ptr<retape::Recompute>> scopes_;
};

// Rows of the batch of a step: [rows, positions, width].
Tensor batch_rows(
    const Config& config,
    uint64_t seed,
    int step,
    retape::dist::RowRange rows,
    at::ScalarType dtype);

// Columns of `sites`, by site.
std::vector<Tensor> by_site(const Tensor& columns, const std::vector<Site>& all, SiteRange sites);
int64_t column_count(const std::vector<Site>& all, SiteRange sites);

}  // namespace three_pool
