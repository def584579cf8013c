#!/bin/sh
# side_by_side.sh <shards> <test binary> <options>: its tests in several processes at once. For those that
# mostly wait.
shards=$1
shift
running=
for shard in $(seq 0 $((shards - 1))); do
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard "$@" &
  running="$running $!"
done
failed=0
for each in $running; do
  wait "$each" || failed=1
done
exit $failed
