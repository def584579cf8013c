// verify for modules of libtorch.
//
//   auto verdict = retape::verify(*model, [&] { return loss_of(model, batch); });
//
// The module itself is trained, plain and recomputed, from the parameters and buffers it has now;
// they are put back in place before each run and at the end, gradients too. For more than one step,
// and for inputs whose gradients count:
//
//   retape::SubjectParts parts;
//   parts.inputs = {{"x", x}};
//   parts.optimizer = [&] {   // made anew for every run
//     auto sgd = std::make_shared<torch::optim::SGD>(model->parameters(), 0.1);
//     return [sgd] { sgd->step(); };
//   };
//   retape::VerifyOptions options;
//   options.steps = 3;
//   auto verdict = retape::verify(retape::subject(*model, step, parts), options);
#pragma once

#include <retape/verify.h>

#include <torch/nn/module.h>

#include <functional>
#include <vector>

namespace retape {

// What belongs to a step besides its module. All of it may be left out.
struct SubjectParts {
  NamedTensors inputs;                               // their gradients are compared too
  std::function<std::function<void()>()> optimizer;  // makes a function that takes one step
  std::vector<at::Generator> generators;             // private ones that the step draws from
};

// `step` runs forward and gives a loss, or losses and outputs. The module must outlive the subject;
// when the subject and its copies are gone, the module is as it was.
RETAPE_API Subject
subject(torch::nn::Module& model, std::function<at::Tensor()> step, SubjectParts parts = {});
RETAPE_API Subject
subject(torch::nn::Module& model, std::function<Outcome()> step, SubjectParts parts = {});

inline Verdict verify(
    torch::nn::Module& model, std::function<at::Tensor()> step, const VerifyOptions& options = {}) {
  return verify(subject(model, std::move(step)), options);
}
inline Verdict verify(
    torch::nn::Module& model, std::function<Outcome()> step, const VerifyOptions& options = {}) {
  return verify(subject(model, std::move(step)), options);
}

}  // namespace retape
