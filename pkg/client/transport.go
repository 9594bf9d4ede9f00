package client

import (
	"context"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
)

// transport carries calls to a server. Both implementations give the same
// outcome and the same *fault.Error.
type transport interface {
	// call sends a request to the named method once, and waits for its answer
	// until ctx ends.
	call(ctx context.Context, method string, req, res proto.Message) error

	// poll is a call of Claim that can be withdrawn: when it returns, no answer
	// is on its way any more, so that no job is claimed for nobody. An answer
	// that came before the withdrawal is returned, even though ctx has ended.
	poll(ctx context.Context, req *flexiqv1.ClaimRequest) (*flexiqv1.ClaimResponse, error)

	// watch hears the events of the namespace until ctx ends. next waits for one;
	// a nil event without an error is none yet. It is not safe for concurrent use.
	watch(ctx context.Context, req *flexiqv1.WatchEventsRequest) (next func() (*flexiqv1.Event, error), err error)

	// met reports whether a server has ever answered at the address.
	met() bool

	// maxMessage is the largest message in bytes that the server takes, 0 when
	// it does not tell.
	maxMessage() int

	// close waits for what is in flight until ctx ends, and disconnects.
	close(ctx context.Context) error
}
