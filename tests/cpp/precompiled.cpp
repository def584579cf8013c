// A precompiled header needs a source that uses it; the header is in CMakeLists.txt.
