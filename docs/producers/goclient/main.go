// Enqueues jobs with FlexiQ's own client.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"

	"flexiq/pkg/client"
	"flexiq/pkg/fault"
)

func main() {
	calls := 1
	if len(os.Args) > 1 {
		calls, _ = strconv.Atoi(os.Args[1])
	}
	ctx := context.Background()
	c, err := client.FromEnvironment(ctx) // FLEXIQ_SERVER and FLEXIQ_TOKEN, else the current context
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	for n := range calls {
		result, err := c.Enqueue(ctx, client.Job{Task: "mail", Args: map[string]any{"to": "ada", "n": n}})
		if refusal, ok := client.AsRefusal(err); ok { // its fields are Limit, Cap, RetryAfter …
			details, _ := json.Marshal(fault.Of(err).Details)
			fmt.Println(refusal.Reason, string(details))
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(result.Status, result.ID)
	}
}
