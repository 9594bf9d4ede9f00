package main

import (
	"fmt"

	"google.golang.org/protobuf/proto"
)

// pageSize is what is asked for at once.
const pageSize = 500

// paging are the flags of every list.
type paging struct {
	Limit     int    `help:"Most entries to print; 0: all." default:"0" placeholder:"N"`
	PageToken string `help:"Go on where an earlier list with --limit ended." placeholder:"TOKEN"`
}

// page is a list response.
type page interface {
	proto.Message
	GetNextPageToken() string
}

// listing prints a list page by page as it arrives: nothing is gathered, so a
// long list costs no memory.
type listing[Res page, Item proto.Message] struct {
	name   string // of the list in the response
	items  func(Res) []Item
	header []any
	row    func(Item) []any
}

func (l listing[Res, Item]) print(s *session, p paging, fetch func(size int32, token string) (Res, error)) error {
	if p.Limit < 0 {
		return usagef("--limit must not be negative")
	}
	out := l.begin(s)
	token := p.PageToken
	for printed := 0; ; {
		size := pageSize
		if p.Limit > 0 {
			size = min(size, p.Limit-printed)
		}
		res, err := fetch(int32(size), token)
		if err != nil {
			return err
		}
		if err := out.page(l.items(res)); err != nil {
			return err
		}
		printed, token = printed+len(l.items(res)), res.GetNextPageToken()
		if token == "" || p.Limit > 0 && printed >= p.Limit {
			return out.end(token)
		}
	}
}

// listPrinter prints one list, as a table or as one JSON object.
type listPrinter[Item proto.Message] struct {
	s       *session
	name    string
	row     func(Item) []any
	table   table
	printed int
}

func (l listing[Res, Item]) begin(s *session) *listPrinter[Item] {
	p := &listPrinter[Item]{s: s, name: l.name, row: l.row}
	p.table.steady = true
	p.table.row(l.header...)
	return p
}

func (p *listPrinter[Item]) page(items []Item) error {
	if !p.s.json() {
		for _, item := range items {
			p.table.row(p.row(item)...)
		}
		if len(items) == 0 {
			return nil // the header waits for rows to be aligned with
		}
		return p.table.write(p.s.out)
	}
	var b []byte
	for _, item := range items {
		b = append(b, p.opening()...)
		p.printed++
		var err error
		if b, err = appendMessage(b, item.ProtoReflect()); err != nil {
			return err
		}
	}
	_, err := p.s.out.Write(b)
	return err
}

// opening is what stands before the next item.
func (p *listPrinter[Item]) opening() string {
	if p.printed > 0 {
		return ","
	}
	return `{"` + p.name + `":[`
}

// end prints what follows the items. The token is of the entries that the
// limit left out.
func (p *listPrinter[Item]) end(token string) error {
	if p.s.json() {
		b := []byte(`],"next_page_token":`)
		if p.printed == 0 {
			b = append([]byte(p.opening()), b...)
		}
		_, err := p.s.out.Write(append(appendString(b, token), "}\n"...))
		return err
	}
	if err := p.table.write(p.s.out); err != nil { // the header of an empty list
		return err
	}
	if token != "" {
		p.s.remark("there are more: go on with --page-token %s", fmt.Sprintf("%q", token))
	}
	return nil
}
