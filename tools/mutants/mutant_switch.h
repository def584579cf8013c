// Which mutant is on. Part of woven sources only.
#pragma once

// True for the active mutant. Notes that it was asked, if somebody wants to know.
bool retape_mutant(int number) noexcept;

// For the server: visible outside the library.
extern "C" __attribute__((visibility("default"))) void retape_mutant_set(int number) noexcept;
extern "C" __attribute__((visibility("default"))) bool* retape_mutants_reached(int count) noexcept;
