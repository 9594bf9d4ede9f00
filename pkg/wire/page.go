package wire

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"

	"flexiq/pkg/fault"
)

// Pages of a listing.
const (
	DefaultPageSize = 50
	MaxPageSize     = 500
)

// PageSize reads a request's page_size; 0 is the default.
func PageSize(n int32) (int, error) {
	switch {
	case n < 0 || n > MaxPageSize:
		return 0, fault.Invalid("page_size", "must be from 1 to %d, got %d", MaxPageSize, n)
	case n == 0:
		return DefaultPageSize, nil
	}
	return int(n), nil
}

// PageToken writes where the next page of a named listing starts; empty at the
// end. A token holds a position and no right: each request's own namespace and
// filter apply, so a token of another namespace shows nothing of it.
func PageToken(list, after string) string {
	if after == "" {
		return ""
	}
	raw := binary.BigEndian.AppendUint32(nil, checksum(list, after))
	return base64.RawURLEncoding.EncodeToString(append(raw, after...))
}

// ParsePageToken reads a request's page_token for a named listing; an empty one
// is the first page. Anything that [PageToken] did not write for this listing
// is an INVALID_REQUEST.
func ParsePageToken(list, token string) (after string, err error) {
	if token == "" {
		return "", nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(raw) <= 4 || binary.BigEndian.Uint32(raw) != checksum(list, string(raw[4:])) {
		return "", fault.Invalid("page_token", "must be the next_page_token of an earlier page of this list")
	}
	return string(raw[4:]), nil
}

// checksum tells a token from garbage and from another listing's. It keeps nothing secret.
func checksum(list, after string) uint32 {
	return crc32.ChecksumIEEE([]byte(list + "\x00" + after))
}
