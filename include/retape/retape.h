// Retape: train bigger models in the same memory, with gradients that did not change.
#pragma once

#include <retape/check.h>
#include <retape/checkpoint.h>
#include <retape/dry_run.h>
#include <retape/eager.h>
#include <retape/error.h>
#include <retape/flops.h>
#include <retape/layers.h>
#include <retape/lean.h>
#include <retape/memory.h>
#include <retape/memory_region.h>
#include <retape/output_discard.h>
#include <retape/policy.h>
#include <retape/recompute.h>
#include <retape/replayable.h>
#include <retape/replayed.h>
#include <retape/rows.h>
#include <retape/verify.h>
#include <retape/verify_module.h>
