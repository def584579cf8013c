// Sums over ranks that are right: everything in one include. Link Retape::dist.
#pragma once

#include <retape/dist/clip.h>
#include <retape/dist/contribution.h>
#include <retape/dist/count.h>
#include <retape/dist/edge.h>
#include <retape/dist/group.h>
#include <retape/dist/placement.h>
#include <retape/dist/reducer.h>
#include <retape/dist/summand.h>
#include <retape/dist/topology.h>
