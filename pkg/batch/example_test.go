package batch_test

import (
	"context"
	"fmt"
	"strings"

	"flexiq/pkg/batch"
)

// One flush answers many calls; a caller sees its own answer only.
func ExampleGroup() {
	ctx := context.Background()
	upper := func(_ context.Context, in []string) ([]string, error) {
		out := make([]string, len(in))
		for i, s := range in {
			out[i] = strings.ToUpper(s)
		}
		return out, nil
	}
	group := batch.New("upper", 4, batch.Options[string]{}, upper)

	answer, err := group.Do(ctx, "billing", len("invoice"), "invoice")
	fmt.Println(answer, err)
	fmt.Println(group.Close(ctx))
	// Output:
	// INVOICE <nil>
	// <nil>
}
