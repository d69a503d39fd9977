/* Products of two factors that are known up to an error, added up (query/gradients/answers.py). */

#include "kernels.h"

#include <math.h>

INLINE void add_pairs(const float *left, const float *left_error, const float *right, const float *right_error, float shift,
                      int64_t count, float *restrict middle, float *restrict off) {
    for (int64_t i = 0; i < count; i++) {
        const float own = left[i] + shift, size = fabsf(right[i]);
        middle[i] += own * right[i];
        off[i] += fabsf(own) * right_error[i] + (size + right_error[i]) * left_error[i];
    }
}

ALL_FORMS(add_pairs,
          (const float *left, const float *left_error, const float *right, const float *right_error, float shift,
           int64_t count, float *middle, float *off),
          (left, left_error, right, right_error, shift, count, middle, off))

/* Add to `middle` [count] the products (left + shift) right, and to `off` how far off they may be. */
void dualform_add_pairs(const float *left, const float *left_error, const float *right, const float *right_error,
                        float shift, int64_t count, float *middle, float *off) {
    CALL(add_pairs, left, left_error, right, right_error, shift, count, middle, off);
}
