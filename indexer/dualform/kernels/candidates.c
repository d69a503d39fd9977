/* The rows that could be among the k best, as the screen offers them: see screen.c. */

#include "kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Move those of some numbers that are greater than `pivot` to the front, or not less where `equal` is 1, and return how
   many they are. Each number is moved, wherever it belongs: half of such branches would be foreseen wrongly. */
INLINE int64_t to_front(float *numbers, int64_t count, float pivot, const int equal) {
    int64_t front = 0;
    for (int64_t i = 0; i < count; i++) {
        const float own = numbers[i];
        numbers[i] = numbers[front];
        numbers[front] = own;
        front += equal ? own >= pivot : own > pivot;
    }
    return front;
}

/* One of `count` numbers, at a place that has nothing to do with how they lie. */
INLINE float any_of(const float *numbers, int64_t count, uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return numbers[(*state >> 33) % (uint64_t)count];
}

/* Move the k greatest of `count` numbers to the front and return the least of them. Scores often rise and fall along a
   training, and moving keeps that order: the first, the middle and the last would leave out two numbers a pass. */
static float select_greatest(float *numbers, int64_t count, int64_t k) {
    uint64_t state = 1;
    for (;;) { /* The k greatest of what is left are looked for; those before it are among the greatest. */
        const float a = any_of(numbers, count, &state), b = any_of(numbers, count, &state),
                    c = any_of(numbers, count, &state);
        const float least = a < b ? a : b, most = a < b ? b : a;
        const float pivot = c < least ? least : c > most ? most : c;
        const int64_t greater = to_front(numbers, count, pivot, 0);
        if (k <= greater) {
            count = greater;
            continue;
        }
        const int64_t front = greater + to_front(numbers + greater, count - greater, pivot, 1);
        if (k <= front) return pivot;
        numbers += front;
        count -= front;
        k -= front;
    }
}

/* Note a lower bound. The floor rises once k more are held: raising it each time would cost more than it saves. */
static void hold(candidates_t *candidates, int64_t cell, float low) {
    const int64_t k = candidates->k;
    float *best = candidates->best + cell * 2 * k;
    if (!(low >= candidates->floors[cell])) return;
    best[candidates->held[cell]++] = low;
    if (candidates->held[cell] == 2 * k || (candidates->held[cell] == k && candidates->floors[cell] == -INFINITY)) {
        candidates->floors[cell] = select_greatest(best, candidates->held[cell], k);
        candidates->held[cell] = k;
    }
}

/* Forget the rows that the floors have passed. */
static void tidy(candidates_t *candidates, const int32_t *group_of, int64_t query) {
    int64_t *rows = candidates->rows + query * candidates->capacity, kept = 0;
    float *high = candidates->high + query * candidates->capacity;
    float *floors = candidates->floors + query * candidates->groups;
    for (int64_t i = 0; i < candidates->counts[query]; i++) {
        const int passed = high[i] < floors[group_of ? group_of[rows[i]] : 0];
        rows[kept] = rows[i]; /* written over by the next one where it was passed */
        high[kept] = high[i];
        kept += !passed;
    }
    candidates->counts[query] = kept;
}

void dualform_offer(candidates_t *candidates, const int32_t *group_of, int64_t query, int64_t row, float low,
                    float high) {
    if (candidates->crowded[query]) return;
    int64_t cell = query * candidates->groups + (group_of ? group_of[row] : 0);
    if (high < candidates->floors[cell]) return; /* the floor rose since the caller looked */
    if (candidates->counts[query] == candidates->capacity) {
        tidy(candidates, group_of, query);
        if (candidates->counts[query] > candidates->capacity / 2) candidates->crowded[query] = 1;
        if (candidates->crowded[query]) return;
    }
    int64_t at = query * candidates->capacity + candidates->counts[query]++;
    candidates->rows[at] = row;
    candidates->high[at] = high;
    hold(candidates, cell, low);
}

/* Once every worker is done: floors over the candidates of all of them, and only the rows that reach these. */
int32_t dualform_settle(candidates_t *const *workers, int64_t count, int64_t queries, const int32_t *group_of) {
    const int64_t k = workers[0]->k, groups = workers[0]->groups;
    float *all = malloc(sizeof(float) * 2 * k * count);
    if (!all) return 1;
    for (int64_t cell = 0; cell < queries * groups; cell++) {
        int64_t held = 0;
        for (int64_t w = 0; w < count; w++) {
            memcpy(all + held, workers[w]->best + cell * 2 * k, sizeof(float) * workers[w]->held[cell]);
            held += workers[w]->held[cell];
        }
        const float floor = held < k ? -INFINITY : select_greatest(all, held, k);
        for (int64_t w = 0; w < count; w++) workers[w]->floors[cell] = floor;
    }
    free(all);
    for (int64_t w = 0; w < count; w++)
        for (int64_t q = 0; q < queries; q++) tidy(workers[w], group_of, q);
    return 0;
}
