/* Sums of keys by group, whose rows lie in runs, one for each (query/sums/key_sums.py). */

#include "kernels.h"

#define LANES 16

/* The rows of one run, one after the other, and the least and the greatest of their numbers and 0. */
INLINE void add_run(const float *const *rows, int64_t count, int64_t d, double *restrict sum, float *least,
                    float *most) {
    float low[LANES] = {0}, high[LANES] = {0};
    for (int64_t r = 0; r < count; r++) {
        const float *row = rows[r];
        int64_t i = 0;
        for (; i + LANES <= d; i += LANES)
            for (int j = 0; j < LANES; j++) {
                const float x = row[i + j];
                low[j] = x < low[j] ? x : low[j];
                high[j] = x > high[j] ? x : high[j];
                sum[i + j] = r ? sum[i + j] + (double)x : (double)x;
            }
        for (; i < d; i++) {
            low[0] = row[i] < low[0] ? row[i] : low[0];
            high[0] = row[i] > high[0] ? row[i] : high[0];
            sum[i] = r ? sum[i] + (double)row[i] : (double)row[i];
        }
    }
    *least = *most = 0;
    for (int j = 0; j < LANES; j++) {
        *least = low[j] < *least ? low[j] : *least;
        *most = high[j] > *most ? high[j] : *most;
    }
}

INLINE void add_runs(const float *const *rows, const int64_t *starts, int64_t runs, int64_t d, double *sums,
                     float *least, float *most) {
    for (int64_t g = 0; g < runs; g++)
        add_run(rows + starts[g], starts[g + 1] - starts[g], d, sums + g * d, least + g, most + g);
}

ALL_FORMS(add_runs,
          (const float *const *rows, const int64_t *starts, int64_t runs, int64_t d, double *sums, float *least,
           float *most),
          (rows, starts, runs, d, sums, least, most))

/* Of each run of rows, from starts[g] to starts[g + 1], none empty: the sum [d] in their order, and the least and the
   greatest of their numbers and 0; NaN is left out of those two. */
void dualform_add_runs(const float *const *rows, const int64_t *starts, int64_t runs, int64_t d, double *sums,
                       float *least, float *most) {
    CALL(add_runs, rows, starts, runs, d, sums, least, most);
}
