/* Offers numbers that rise and then fall, as scores along a training may, and prints the least of the k greatest. */

#include <stdio.h>

#include "candidates.c"

enum { COUNT = 1600000, K = 400000 };

int main(void) {
    candidates_t held = {.k = K, .groups = 1};
    float floor = -INFINITY;
    int64_t count = 0;
    held.best = malloc(sizeof(float) * 2 * K);
    held.floors = &floor;
    held.held = &count;
    if (!held.best) return 1;
    for (int i = 0; i < COUNT; i++) hold(&held, 0, (float)(i < COUNT / 2 ? i : COUNT - 1 - i));
    printf("%.0f\n", (double)select_greatest(held.best, count, K));
    free(held.best);
    return 0;
}
