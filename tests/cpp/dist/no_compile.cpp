// What must not compile, each with the message that the user sees (does_not_compile.cmake), and
// beside it what is right. Without RIGHT every line that is marked as wrong is an error of its own.
#include <retape/dist/dist.h>

using namespace retape::dist;

void sums(SumReducer& reducer, const Group& group, const at::Tensor& tensor) {
  const Partial<at::Tensor> partial(tensor);
  const Replicated<at::Tensor> replicated(tensor);
#ifdef RIGHT
  reducer.add("a", partial + contribute_once("b", replicated, group));
  normalize(tensor, count_global("rows", 3, group));
#else
  reducer.add("a", replicated);  // wrong: a Replicated value in a sum
  (void)(partial + replicated);  // wrong: added to a Partial one
  // Of another type: a compiler tells of each instance of a template once.
  (void)(Replicated<double>(1.0) + Partial<double>(1.0));  // wrong: a Partial one added to it
  normalize(tensor, 3);                                    // wrong: not a GlobalCount
  GlobalCount count(3, {0});                               // wrong: is private
#endif
}
