package client

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/fault"
)

// DeleteDeadLetters deletes dead jobs for good, by id or filter. A filter that
// matches very many may take several calls: go on with the answer's
// next_page_token.
func (a Admin) DeleteDeadLetters(ctx context.Context, req *flexiqv1.DeleteDeadLettersRequest) (*flexiqv1.DeleteDeadLettersResponse, error) {
	return write[flexiqv1.DeleteDeadLettersResponse](ctx, a.c, "DeleteDeadLetters", req)
}

// ReplayDeadLetters moves dead jobs back to pending, as many as the quota lets
// in now. See [Admin.ReplayAll] for the rest.
func (a Admin) ReplayDeadLetters(ctx context.Context, req *flexiqv1.ReplayDeadLettersRequest) (*flexiqv1.ReplayDeadLettersResponse, error) {
	return write[flexiqv1.ReplayDeadLettersResponse](ctx, a.c, "ReplayDeadLetters", req)
}

const (
	replayPage  = 500
	replayPause = 100 * time.Millisecond // the least, so that a fast quota fills up between two calls
)

// ReplayAll replays the dead jobs that match the filter, a nil one all of them,
// at the pace that the quota sets: until each moved, is gone, or stays for a
// reason that waiting does not mend. Jobs that die meanwhile are left alone. It
// hands what it has done so far to progress, which may be nil, after each call of
// the server. What moved stays so when it ends early, and running it again goes
// on; an answer that was lost is missing from the counts.
func (a Admin) ReplayAll(ctx context.Context, filter *flexiqv1.DeadLetterFilter, progress func(*flexiqv1.ReplayDeadLettersResponse)) (*flexiqv1.ReplayDeadLettersResponse, error) {
	if filter == nil {
		filter = &flexiqv1.DeadLetterFilter{}
	}
	r := &replayAll{
		admin: a, reasons: map[string]int64{},
		req: &flexiqv1.ReplayDeadLettersRequest{Filter: proto.CloneOf(filter), PageSize: replayPage},
	}
	for {
		wait, more, err := r.step(ctx)
		if err != nil || !more {
			return r.sum(), err
		}
		if progress != nil {
			progress(r.sum())
		}
		if wait > 0 && !sleep(ctx, max(wait, replayPause)) {
			return r.sum(), fault.Of(ctx.Err())
		}
	}
}

type replayAll struct {
	admin             Admin
	req               *flexiqv1.ReplayDeadLettersRequest
	moved, left, gone int64
	reasons           map[string]int64
}

// step makes one call. wait is how long until a limit may let more in.
func (r *replayAll) step(ctx context.Context) (wait time.Duration, more bool, err error) {
	res, err := r.call(ctx)
	switch refusal, ok := AsRefusal(err); {
	case ok && refusal.Never:
		return 0, false, r.rest(ctx)
	case ok:
		return refusal.RetryAfter, true, nil
	case err != nil:
		return 0, false, err
	}
	r.moved, r.gone = r.moved+res.GetMoved(), r.gone+res.GetGone()
	limited := false
	for _, reason := range res.GetReasons() {
		if ofLimit(reason.GetReason()) {
			limited = true // they are tried again, or counted at the end
		} else {
			r.stay(reason.GetReason(), reason.GetCount())
		}
	}
	if r.req.Filter.Before == nil {
		r.req.Filter.Before = res.GetTime()
	}
	r.req.PageToken = res.GetNextPageToken()
	switch {
	case limited && res.GetRetryAfter() == nil:
		return 0, false, r.rest(ctx)
	case limited:
		return max(res.GetRetryAfter().AsDuration(), 1), true, nil
	}
	return 0, r.req.PageToken != "", nil
}

// call makes the call, again while it may pass unchanged: what it moved before is
// not chosen twice.
func (r *replayAll) call(ctx context.Context) (res *flexiqv1.ReplayDeadLettersResponse, err error) {
	var refused error
	err = r.admin.c.repeat(ctx, func(ctx context.Context) error {
		return patiently(ctx, func(ctx context.Context) (err error) {
			res, err = r.admin.ReplayDeadLetters(ctx, r.req)
			if _, ok := AsRefusal(err); ok {
				refused, err = err, nil // which the client may be told to repeat
			}
			return err
		})
	})
	return res, cmp.Or(err, refused)
}

// rest counts what no waiting lets in.
func (r *replayAll) rest(ctx context.Context) error {
	r.req.PageSize = 0
	res, err := r.call(ctx)
	if refusal, ok := AsRefusal(err); ok {
		n, _ := strconv.ParseInt(fault.Of(err).Details["left"], 10, 64)
		r.stay(string(refusal.Reason), n)
		return nil
	}
	r.moved, r.gone = r.moved+res.GetMoved(), r.gone+res.GetGone()
	for _, reason := range res.GetReasons() {
		r.stay(reason.GetReason(), reason.GetCount())
	}
	return err
}

func ofLimit(reason string) bool {
	return reason == string(fault.QueueFull) || reason == string(fault.RateLimited)
}

func (r *replayAll) stay(reason string, n int64) {
	r.left += n
	r.reasons[reason] += n
}

func (r *replayAll) sum() *flexiqv1.ReplayDeadLettersResponse {
	res := &flexiqv1.ReplayDeadLettersResponse{Moved: r.moved, Left: r.left, Gone: r.gone}
	for _, reason := range slices.Sorted(maps.Keys(r.reasons)) {
		res.Reasons = append(res.Reasons, &flexiqv1.ReplayReason{Reason: reason, Count: r.reasons[reason]})
	}
	slices.SortStableFunc(res.Reasons, func(a, b *flexiqv1.ReplayReason) int { return cmp.Compare(b.Count, a.Count) })
	return res
}
