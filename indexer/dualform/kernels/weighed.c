/* Sums of rows, each with a weight, as slots bring them to an output (query/weights/output.py). */

#include "kernels.h"

#include <math.h>

#define JOINED 64 /* rows that are added up before they join the sum, as _TERMS in query/weights/output.py */

/* Up to four rows at once: their sums are loaded and stored once for all. */
INLINE void add_rows(const float *const *rows, const double *weights, const double *sizes, const int count, int64_t d,
                     double *restrict sum, double *restrict terms) {
    for (int64_t i = 0; i < d; i++) {
        double own[4], size[4];
        for (int r = 0; r < count; r++) own[r] = weights[r] * (double)rows[r][i];
        for (int r = 0; r < count; r++) size[r] = sizes[r] * fabs((double)rows[r][i]);
        sum[i] += count == 4 ? (own[0] + own[1]) + (own[2] + own[3]) : own[0];
        terms[i] += count == 4 ? (size[0] + size[1]) + (size[2] + size[3]) : size[0];
    }
}

/* What a sum loses to rounding is known exactly (Knuth, The Art of Computer Programming, 4.2.2). */
INLINE void join(int64_t d, double *restrict sum, double *restrict found, double *restrict lost) {
    for (int64_t i = 0; i < d; i++) {
        const double summed = found[i] + sum[i], taken = summed - found[i];
        lost[i] += (found[i] - (summed - taken)) + (sum[i] - taken);
        found[i] = summed;
        sum[i] = 0.0;
    }
}

INLINE void weigh(const float *const *rows, const double *weights, const double *sizes, int64_t count, int64_t d,
                  double *sum, double *found, double *lost, double *terms) {
    for (int64_t first = 0; first < count; first += JOINED) {
        const int64_t last = first + JOINED < count ? first + JOINED : count;
        int64_t r = first;
        for (; r + 4 <= last; r += 4) add_rows(rows + r, weights + r, sizes + r, 4, d, sum, terms);
        for (; r < last; r++) add_rows(rows + r, weights + r, sizes + r, 1, d, sum, terms);
        join(d, sum, found, lost);
    }
}

ALL_FORMS(weigh,
          (const float *const *rows, const double *weights, const double *sizes, int64_t count, int64_t d, double *sum,
           double *found, double *lost, double *terms),
          (rows, weights, sizes, count, d, sum, found, lost, terms))

/* Add to `found` [d] the sum of weights[r] * rows[r], and what that loses to `lost`; to `terms` that of sizes[r] *
   |rows[r]|. `sum` is scratch of d zeros, and is left so. */
void dualform_weigh(const float *const *rows, const double *weights, const double *sizes, int64_t count, int64_t d,
                    double *sum, double *found, double *lost, double *terms) {
    CALL(weigh, rows, weights, sizes, count, d, sum, found, lost, terms);
}
