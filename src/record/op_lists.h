// What schema and tags do not tell about operators, or tell wrongly. One list, one reason.
#pragma once

#include <array>
#include <string_view>

namespace retape::detail::lists {

using Names = std::string_view;

// Update running statistics that their schema calls read-only (or, the last two, calls written
// although only `training` decides). Arguments 3 and 4; 5 says whether it is training.
constexpr std::array kUpdateStatistics{
    Names("aten::native_batch_norm"),
    Names("aten::cudnn_batch_norm"),
    Names("aten::miopen_batch_norm"),
    Names("aten::_native_batch_norm_legit"),
};

// The same with another signature, or with other hidden state, or (mkldnn_rnn_layer) a workspace of which
// the kernel leaves bytes unwritten, so that nobody can tell whether it came back: never replayed.
constexpr std::array kHiddenState{
    Names("aten::batch_norm_update_stats"),
    Names("aten::batch_norm_gather_stats"),
    Names("aten::batch_norm_gather_stats_with_counts"),
    Names("aten::_batch_norm_with_update"),
    Names("aten::_cudnn_rnn"),
    Names("aten::miopen_rnn"),
    Names("aten::mkldnn_rnn_layer"),
    Names("aten::_cudnn_init_dropout_state"),
};

// Memory made to be written, often by kernels that the dispatcher cannot see (Triton, numpy, C
// extensions; those that accumulate want zeros): never a recipe, until an op overwrites all of it.
constexpr std::array kUninitialized{
    Names("aten::empty"),
    Names("aten::empty_like"),
    Names("aten::empty_strided"),
    Names("aten::empty_permuted"),
    Names("aten::new_empty"),
    Names("aten::new_empty_strided"),
    Names("aten::zeros"),
    Names("aten::zeros_like"),
    Names("aten::new_zeros"),
};

// Pick elements of their first argument. Tagged as if their shapes depended on values, which holds for masks
// alone: what integers pick has the shape of the integers.
constexpr std::array kPicks{
    Names("aten::index"),
};

// In-place ops that leave nothing of what was there (out= variants are known by their tag).
constexpr std::array kOverwrite{
    Names("aten::copy_"),
    Names("aten::fill_"),
    Names("aten::zero_"),
    Names("aten::normal_"),
    Names("aten::uniform_"),
    Names("aten::bernoulli_"),
    Names("aten::exponential_"),
    Names("aten::log_normal_"),
    Names("aten::cauchy_"),
    Names("aten::geometric_"),
    Names("aten::random_"),
    Names("aten::rrelu_with_noise"),
};

// Change only how a tensor looks at its storage; other inplace_view ops change the storage itself.
constexpr std::array kMetadataOnly{
    Names("aten::t_"),
    Names("aten::transpose_"),
    Names("aten::squeeze_"),
    Names("aten::unsqueeze_"),
    Names("aten::swapaxes_"),
    Names("aten::swapdims_"),
    Names("aten::as_strided_"),
    Names("aten::detach_"),
};

// Integer results decide where data goes; a tie that falls otherwise in replay sends it elsewhere.
constexpr std::array kRouting{
    Names("aten::topk"),
    Names("aten::sort"),
    Names("aten::argsort"),
    Names("aten::argmax"),
    Names("aten::argmin"),
    Names("aten::max"),
    Names("aten::min"),
    Names("aten::median"),
    Names("aten::nanmedian"),
    Names("aten::mode"),
    Names("aten::kthvalue"),
    Names("aten::multinomial"),
    Names("aten::bincount"),
    Names("aten::histc"),
    Names("aten::searchsorted"),
    Names("aten::bucketize"),
    Names("aten::cummax"),
    Names("aten::cummin"),
    Names("aten::_cummax_helper"),
    Names("aten::_cummin_helper"),
};

// Add in any order on a device with atomics (torch.use_deterministic_algorithms documents them).
constexpr std::array kUnorderedOffCpu{
    Names("aten::index_add"),
    Names("aten::index_add_"),
    Names("aten::index_put"),
    Names("aten::index_put_"),
    Names("aten::_index_put_impl_"),
    Names("aten::scatter_add"),
    Names("aten::scatter_add_"),
    Names("aten::scatter_reduce"),
    Names("aten::scatter_reduce_"),
    Names("aten::scatter"),
    Names("aten::put_"),
    Names("aten::put"),
    Names("aten::cumsum"),
    Names("aten::bincount"),
    Names("aten::histc"),
    Names("aten::embedding_dense_backward"),
    Names("aten::_ctc_loss"),
};

// Memory traffic only, though neither tag (pointwise, reduction) says so: norms, softmax, casts,
// copies, fills and gathers.
constexpr std::array kCheap{
    Names("aten::native_layer_norm"),
    Names("aten::native_group_norm"),
    Names("aten::native_batch_norm"),
    Names("aten::_native_batch_norm_legit"),
    Names("aten::_fused_rms_norm"),
    Names("aten::_weight_norm_interface"),
    Names("aten::_softmax"),
    Names("aten::_log_softmax"),
    Names("aten::_safe_softmax"),
    Names("aten::_to_copy"),
    Names("aten::clone"),
    Names("aten::copy_"),
    Names("aten::fill_"),
    Names("aten::zero_"),
    Names("aten::cat"),
    Names("aten::stack"),
    Names("aten::repeat"),
    Names("aten::roll"),
    Names("aten::flip"),
    Names("aten::tril"),
    Names("aten::triu"),
    Names("aten::constant_pad_nd"),
    Names("aten::cumsum"),
    Names("aten::cumprod"),
    Names("aten::index_select"),
    Names("aten::gather"),
    Names("aten::index"),
    Names("aten::embedding"),
    Names("aten::native_dropout"),
    Names("aten::ones"),
    Names("aten::ones_like"),
    Names("aten::full"),
    Names("aten::full_like"),
    Names("aten::arange"),
    Names("aten::scalar_tensor"),
    Names("aten::new_ones"),
    Names("aten::new_full"),
    Names("aten::linalg_vector_norm"),
};

// Namespaces whose schemas are trusted; another needs the pt2_compliant tag to be replayed.
constexpr std::array kTrustedNamespaces{Names("aten"), Names("prims")};

}  // namespace retape::detail::lists
