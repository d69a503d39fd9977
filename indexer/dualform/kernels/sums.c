/* Sums of absolute scores by group: what query/sums/grouping.py adds up of a block of scores.

   Rows of scores lie in runs of one group, each of whose rows counts as often as the run says. Of every column the rows
   of a run are added in order, the runs of a group likewise, and then the group's sum, all in float64: the bits are
   those of PairBlock.add. */

#include "kernels.h"

#include <math.h>

#define COLUMNS 256 /* whose sums the first level of the cache holds beside their scores */

/* To the sums of a row: those of the first row, where `begins` (a constant) is 1, or added to those of others. */
INLINE void add_absolute(double *restrict sums, const double *restrict scores, int64_t count, const int begins) {
    for (int64_t c = 0; c < count; c++) sums[c] = begins ? fabs(scores[c]) : sums[c] + fabs(scores[c]);
}

/* The deviations' scores to `drift`; with the means', rounded to float32, their absolute values to `sums`. */
INLINE void add_deviations(double *restrict drift, double *restrict sums, const float *restrict scores,
                           const float *restrict base, int64_t count, const int begins) {
    for (int64_t c = 0; c < count; c++) {
        const double own = (double)scores[c], whole = (double)fabsf(scores[c] + base[c]);
        drift[c] = begins ? own : drift[c] + own;
        sums[c] = begins ? whole : sums[c] + whole;
    }
}

INLINE void add_times(double *restrict sums, const double *restrict terms, double times, int64_t count) {
    for (int64_t c = 0; c < count; c++) sums[c] += terms[c] * times;
}

INLINE void add(double *restrict sums, const double *restrict terms, int64_t count) {
    for (int64_t c = 0; c < count; c++) sums[c] += terms[c];
}

/* Some columns of one run. */
INLINE void sum_run(const runs_t *runs, int64_t r, const scores_t *scores, int64_t first, int64_t count,
                    double *restrict drift, double *restrict sums) {
    const float *base = scores->narrow ? scores->base + runs->groups[r] * scores->base_apart + first : NULL;
    for (int64_t row = runs->starts[r]; row < runs->starts[r + 1]; row++) {
        const int64_t place = row * scores->apart + first;
        const int begins = row == runs->starts[r];
        if (scores->narrow && begins) add_deviations(drift, sums, scores->narrow + place, base, count, 1);
        else if (scores->narrow) add_deviations(drift, sums, scores->narrow + place, base, count, 0);
        else if (begins) add_absolute(sums, scores->wide + place, count, 1);
        else add_absolute(sums, scores->wide + place, count, 0);
    }
}

/* Some columns of a group, whose runs are `begin` to `end`. */
INLINE void sum_group(const runs_t *runs, int64_t begin, int64_t end, const scores_t *scores, int64_t first,
                      int64_t count, double *restrict drift, double *restrict sums) {
    double run[COLUMNS], run_drift[COLUMNS];
    if (begin + 1 == end) { /* what is added to nothing stays as it is */
        sum_run(runs, begin, scores, first, count, run_drift, run);
        add_times(sums, run, runs->times[begin], count);
        if (scores->narrow) add_times(drift, run_drift, runs->times[begin], count);
        return;
    }
    double own[COLUMNS] = {0}, own_drift[COLUMNS] = {0};
    for (int64_t r = begin; r < end; r++) {
        sum_run(runs, r, scores, first, count, run_drift, run);
        add_times(own, run, runs->times[r], count);
        if (scores->narrow) add_times(own_drift, run_drift, runs->times[r], count);
    }
    add(sums, own, count);
    if (scores->narrow) add(drift, own_drift, count);
}

INLINE void sum_runs(const runs_t *runs, const scores_t *scores, double *drift, double *sums) {
    for (int64_t first = 0; first < scores->columns; first += COLUMNS) {
        const int64_t left = scores->columns - first, count = left < COLUMNS ? left : COLUMNS;
        for (int64_t begin = 0, end; begin < runs->count; begin = end) {
            for (end = begin + 1; end < runs->count && runs->groups[end] == runs->groups[begin];) end++;
            const int64_t place = runs->groups[begin] * scores->sums_apart + first;
            sum_group(runs, begin, end, scores, first, count, drift ? drift + place : NULL, sums + place);
        }
    }
}

ALL_FORMS(sum_runs, (const runs_t *runs, const scores_t *scores, double *drift, double *sums),
          (runs, scores, drift, sums))

/* Add to float64 `sums` of groups, whose rows lie scores->sums_apart numbers apart, and to `drift` where the scores are
   those of deviations. */
void dualform_sum_runs(const runs_t *runs, const scores_t *scores, double *drift, double *sums) {
    CALL(sum_runs, runs, scores, drift, sums);
}
