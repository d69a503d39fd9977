/* Updates that are run again: what Adam makes of a parameter's numbers, of all slots and of those that a mask leaves.

   Operation for operation what rules/adam.py does with arrays, in the same order and without fused products, so that
   both give the same bits. One pass over the numbers takes the place of some thirty. */

#include "kernels.h"

#include <math.h>

/* One number's average and weight after the update, through what the whole gradient made of it. */
INLINE void advance(const adam_t *how, double gradient, double left, double factor, double *weight, double *average) {
    double descent = how->sign * gradient;
    if (how->coupled != 0.0) descent = descent + how->coupled * *weight;
    *average = how->share * descent + how->rest * *average;
    *weight = left * *weight - factor * *average;
}

INLINE void update(const adam_t *how, int64_t n, double *restrict weight, double *restrict average,
                   double *restrict squares, const double *restrict gradient, double *restrict own_weight,
                   double *restrict own_average, const double *restrict own_gradient, const int masked,
                   const int decays) {
    for (int64_t i = 0; i < n; i++) {
        const double w = weight[i];
        double descent = how->sign * gradient[i];
        if (how->coupled != 0.0) descent = descent + how->coupled * w;
        squares[i] = how->share_of_squares * descent * descent + how->rest_of_squares * squares[i];
        const double factor = how->rate / (sqrt(squares[i] / how->correction) + how->eps);
        double left = how->left;
        if (decays) { /* as left_of in rules/rounding.py */
            const float single = (float)w;
            const double moved = (double)(single * (float)how->left) - (double)single;
            left = 1.0 + moved / (w != 0.0 ? w : 1.0);
        }
        advance(how, gradient[i], left, factor, weight + i, average + i);
        if (masked) advance(how, own_gradient[i], left, factor, own_weight + i, own_average + i);
    }
}

#define VARIANTS(how, ...)                                                            \
    do {                                                                              \
        if (own_weight && how->rounds) update(how, __VA_ARGS__, 1, 1);                \
        else if (own_weight) update(how, __VA_ARGS__, 1, 0);                          \
        else if (how->rounds) update(how, __VA_ARGS__, 0, 1);                         \
        else update(how, __VA_ARGS__, 0, 0);                                          \
    } while (0)

INLINE void adam(const adam_t *how, int64_t n, double *weight, double *average, double *squares,
                 const double *gradient, double *own_weight, double *own_average, const double *own_gradient) {
    VARIANTS(how, n, weight, average, squares, gradient, own_weight, own_average, own_gradient);
}

ALL_FORMS(adam,
          (const adam_t *how, int64_t n, double *weight, double *average, double *squares, const double *gradient,
           double *own_weight, double *own_average, const double *own_gradient),
          (how, n, weight, average, squares, gradient, own_weight, own_average, own_gradient))

/* n numbers in place; the last three are NULL where every slot stays. */
void dualform_adam(const adam_t *how, int64_t n, double *weight, double *average, double *squares,
                   const double *gradient, double *own_weight, double *own_average, const double *own_gradient) {
    CALL(adam, how, n, weight, average, squares, gradient, own_weight, own_average, own_gradient);
}
