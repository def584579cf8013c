// What schema and tags do not tell about operators, or tell wrongly. One list, one reason.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace retape::detail::lists {

using Names = std::string_view;

// Update statistics or a state that their schema calls read-only (or calls written, although only
// `training` decides). tests/python/audit runs every op and compares all bytes with this list.
struct HiddenWrites {
  Names op;
  std::array<uint16_t, 2> arguments;
};
constexpr std::array kHiddenWrites{
    HiddenWrites{"aten::native_batch_norm", {3, 4}},
    HiddenWrites{"aten::cudnn_batch_norm", {3, 4}},
    HiddenWrites{"aten::miopen_batch_norm", {3, 4}},
    HiddenWrites{"aten::_native_batch_norm_legit", {3, 4}},
    HiddenWrites{"aten::batch_norm_update_stats", {1, 2}},
    HiddenWrites{"aten::batch_norm_gather_stats", {3, 4}},
    HiddenWrites{"aten::batch_norm_gather_stats_with_counts", {3, 4}},
    HiddenWrites{"aten::_cudnn_rnn", {15, 15}},  // dropout_state
    HiddenWrites{"aten::miopen_rnn", {13, 13}},
};

// Of these, those that are never replayed; with other hidden state; or (mkldnn_rnn_layer) with a
// workspace of which the kernel leaves bytes unwritten, so that nobody can tell whether it came
// back.
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

// Leave parts of what they return unwritten, and no tag says so (of _ctc_loss, its out= forms):
// never replayed.
constexpr std::array kPartlyUnwritten{
    Names("aten::_ctc_loss"),
    Names("aten::_make_dep_token"),
    Names("aten::resize"),
    Names("aten::resize_as"),
};

// Add to their out= argument, or leave it as it was.
constexpr std::array kOutUpdated{
    Names("aten::_compute_linear_combination"),
    Names("aten::_convert_indices_from_csr_to_coo"),
    Names("aten::_batch_norm_with_update"),
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

// Pick elements of their first argument. Tagged as if their shapes depended on values, which holds
// for masks alone: what integers pick has the shape of the integers.
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

// Namespaces of torch itself. Ops of others are replayed if they are called replayable
// (replayable.h).
constexpr std::array kTrustedNamespaces{Names("aten"), Names("prims")};

// Ops of popular libraries that compute their results from their arguments and a torch generator,
// and do nothing else. Others are replayed if their user says so (retape::replayable).
constexpr std::array kKnownReplayable{
    Names("flash_attn::_flash_attn_forward"),
    Names("flash_attn::_flash_attn_varlen_forward"),
    Names("flash_attn_3::fwd"),
    Names("xformers::efficient_attention_forward_cutlass"),
    Names("xformers_flash::flash_fwd"),
    Names("torchvision::roi_align"),
    Names("torchvision::roi_pool"),
    Names("torchvision::ps_roi_align"),
    Names("torchvision::ps_roi_pool"),
    Names("torchvision::deform_conv2d"),
    Names("fbgemm::dense_to_jagged_forward"),
    Names("fbgemm::jagged_to_padded_dense_forward"),
};

}  // namespace retape::detail::lists
