// Visibility of Retape's public symbols. Everything without RETAPE_API is hidden.
#pragma once

#define RETAPE_API __attribute__((visibility("default")))

#define RETAPE_VERSION_MAJOR 0
#define RETAPE_VERSION_MINOR 1
#define RETAPE_VERSION_PATCH 0
#define RETAPE_VERSION "0.1.0"
