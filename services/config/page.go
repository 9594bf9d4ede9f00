package config

import "flexiq/pkg/wire"

// paged is a request for a page of a listing.
type paged interface {
	GetPageSize() int32
	GetPageToken() string
}

// page reads a request's page_size and page_token for a named listing.
func page(list string, req paged) (size int, after string, err error) {
	if size, err = wire.PageSize(req.GetPageSize()); err != nil {
		return 0, "", err
	}
	after, err = wire.ParsePageToken(list, req.GetPageToken())
	return size, after, err
}
