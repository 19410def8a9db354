# Read by CMake inside the project ggml alone: the kernels, whose speed is compared.
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
