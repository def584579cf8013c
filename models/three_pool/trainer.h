// Parameter decomposition, trained by three pools of ranks, and by one process to compare with.
//
//   using retape::dist::Case, three_pool::make_topology;
//   const Case c{make_topology({4, 2, 2, 2}), three_pool::all_terms()};
//   const auto expected = three_pool::reference(c);
//   ranks::run_ranks(10, [&](ranks::World& world) {
//     const auto found = three_pool::distributed(c, world);    // of each name that the rank holds,
//     the same
//   });
//
// A target network, frozen, whose linear sites are written as sums of components V, U; a CI
// function theta that says which components matter where; four terms of a loss on both (losses.h).
// The pools are those of layout.h, and this goes between them in a step:
//
//   ci -> blocks, ci -> ppgd          lower bounds, by rows
//   blocks -> ci, ppgd -> ci          their gradients; added before they enter the CI function's
//   backward ppgd -> leader of each block      gradients of its V and U leader of each block ->
//   ppgd      V and U after the step
//
// These six travel in the case's wire dtype. What is added up within a pool (gradients, counts,
// sums of importance, norms) is added in the dtype of the computation.
//
// Every sum is a plain sum: who computes a part divides it by a count of all ranks, what all ranks
// of a block have (faith, gradients of ppgd) is contributed once. No factor of a pool's size is
// anywhere.
//
// It is the trainer of param-decomp#546: each sum, who computes and contributes what, and every
// denominator. The sources' gradients are divided by the count of the rank that has them, as there
// (Config::source_count), and the reference divides those of a row by the same.
//
// Terms are "faith", "imp", "stoch", "ppgd"; one that is missing or 0 is not computed. Gradients
// are those of the last step, zeros where no term reaches. Norms are "theta" and "V/U". Losses are
// the terms, of the last step and before their weights, on every rank of the pools that compute
// them: sums of errors over sums of counts.
#pragma once

#include <retape/dist/case.h>
#include <retape/dist/placement.h>

#include <three_pool/config.h>
#include <three_pool/layout.h>

namespace three_pool {

// The loss as it is written down, in one process, with one backward.
retape::dist::Outcome reference(const retape::dist::Case& run, const Config& config = {});

// The part of this rank, in the topology of the case; nothing on a rank beyond it.
retape::dist::Outcome distributed(
    const retape::dist::Case& run,
    const retape::dist::GroupFactory& groups,
    const Config& config = {});

}  // namespace three_pool
