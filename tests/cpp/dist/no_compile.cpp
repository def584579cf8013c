// What must not compile, each with the message that the user sees (does_not_compile.cmake), and beside it
// what is right. Without RIGHT every line below is an error.
#include <retape/dist/dist.h>

using namespace retape::dist;

void sums(SumReducer& reducer, const Group& group, const at::Tensor& tensor) {
  const Partial<at::Tensor> partial(tensor);
  const Replicated<at::Tensor> replicated(tensor);
#ifdef RIGHT
  reducer.add("a", partial + contribute_once("b", replicated, group));
  normalize(tensor, count_global("rows", 3, group));
#else
  reducer.add("a", replicated);      // a Replicated value in a sum
  (void)(partial + replicated);      // added to a Partial one
  (void)(replicated + partial);
  normalize(tensor, 3);              // not a GlobalCount
  GlobalCount count(3, {0});         // is private
#endif
}
