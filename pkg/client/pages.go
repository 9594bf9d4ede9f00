package client

import (
	"context"
	"iter"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// tokenField is how every list request names the page that it asks for.
const tokenField protoreflect.Name = "page_token"

// pages turns a listing that answers page by page into one sequence. A page
// may be empty and still not be the last.
func pages[Req proto.Message, Res interface{ GetNextPageToken() string }, Item any](
	ctx context.Context, req Req, list func(context.Context, Req) (Res, error), items func(Res) []Item,
) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		req := proto.CloneOf(req)
		m := req.ProtoReflect()
		for {
			page, err := list(ctx, req)
			if err != nil {
				yield(*new(Item), err)
				return
			}
			for _, item := range items(page) {
				if !yield(item, nil) {
					return
				}
			}
			if page.GetNextPageToken() == "" {
				return
			}
			m.Set(m.Descriptor().Fields().ByName(tokenField), protoreflect.ValueOfString(page.GetNextPageToken()))
		}
	}
}
