package configcache_test

import (
	"context"
	"fmt"

	"flexiq/pkg/configcache"
)

// The hot path peeks, and only a miss waits for the store.
func ExampleCache() {
	stored := map[string]int{"billing": 1}
	cache := configcache.New(configcache.Options[int]{
		Load: func(_ context.Context, keys []string) ([]int, error) {
			values := make([]int, len(keys))
			for i, k := range keys {
				values[i] = stored[k] // absence is a value too
			}
			return values, nil
		},
		Revision: func(v int) int64 { return int64(v) },
	})
	defer cache.Close()

	_, ok := cache.Peek("billing")
	fmt.Println(ok)
	fmt.Println(cache.Get(context.Background(), "billing"))

	stored["billing"] = 2
	cache.Invalidate("billing", 1) // an old hint
	fmt.Println(cache.Peek("billing"))
	cache.Invalidate("billing", 2)
	fmt.Println(cache.Get(context.Background(), "billing"))
	// Output:
	// false
	// 1 <nil>
	// 1 true
	// 2 <nil>
}
