package rpc

import (
	"net/http"
	"slices"
	"strings"

	"connectrpc.com/grpcreflect"

	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
)

const reflectionPrefix = "/grpc.reflection."

func servicesOf(methods []auth.Method) []string {
	var names []string
	for _, m := range methods {
		if !slices.Contains(names, m.Service) {
			names = append(names, m.Service)
		}
	}
	return names
}

// reflection serves gRPC server reflection of the services in this process.
func reflection(methods []Method) http.Handler {
	entries := make([]auth.Method, len(methods))
	for i, m := range methods {
		entries[i] = m.Method
	}
	reflector := grpcreflect.NewStaticReflector(servicesOf(entries)...)
	mux := http.NewServeMux()
	mux.Handle(grpcreflect.NewHandlerV1(reflector))
	mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector))
	return mux
}

// reflect answers a request for reflection, which needs a token of any scope.
func (d *door) reflect(w http.ResponseWriter, r *http.Request) {
	if _, err := d.ids.Verify(r.Context(), bearer(r), r.RemoteAddr); err != nil {
		d.refuse(w, r, fault.Of(err))
		return
	}
	d.reflection.ServeHTTP(w, r)
}

func isReflection(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, reflectionPrefix) }
