// Ends what byte_products_begin.h began. No include guard.
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef KINFOLK_UNROLL
