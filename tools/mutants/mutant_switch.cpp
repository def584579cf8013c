#include "mutant_switch.h"

#include <new>

namespace {

int active = -1;
bool* reached = nullptr;  // written by several threads, all with the same value

}  // namespace

bool retape_mutant(int number) noexcept {
  if (reached != nullptr) {
    reached[number] = true;
  }
  return number == active;
}

void retape_mutant_set(int number) noexcept {
  active = number;
}

bool* retape_mutants_reached(int count) noexcept {
  reached = new (std::nothrow) bool[count]();
  return reached;
}
