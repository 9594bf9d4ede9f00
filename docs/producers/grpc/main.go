// Enqueues jobs with grpc-go and the messages of pkg/api. Where a plugin makes
// stubs of the .proto files, Invoke is one of its methods.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
)

func main() {
	calls := 1
	if len(os.Args) > 1 {
		calls, _ = strconv.Atoi(os.Args[1])
	}
	host := strings.TrimPrefix(os.Getenv("FLEXIQ_SERVER"), "http://")
	conn, err := grpc.NewClient(host, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+os.Getenv("FLEXIQ_TOKEN"))
	for n := range calls {
		args, _ := structpb.NewValue(map[string]any{"to": "ada", "n": n})
		var res flexiqv1.EnqueueResponse
		err := conn.Invoke(ctx, "/flexiq.v1.ProducerService/Enqueue",
			&flexiqv1.EnqueueRequest{Job: &flexiqv1.JobSpec{Task: "mail", Args: args}}, &res)
		switch s := status.Convert(err); s.Code() {
		case codes.OK:
			fmt.Println(res.GetResult().GetJob().GetStatus(), res.GetResult().GetJob().GetId())
		case codes.ResourceExhausted:
			for _, detail := range s.Details() { // a RetryInfo is among them too
				if refusal, ok := detail.(*errdetails.ErrorInfo); ok {
					text, _ := json.Marshal(refusal.GetMetadata())
					fmt.Println(refusal.GetReason(), string(text))
				}
			}
		default:
			log.Fatal(err)
		}
	}
}
