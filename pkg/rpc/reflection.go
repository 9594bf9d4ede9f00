package rpc

import (
	"net/http"
	"slices"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"

	"flexiq/pkg/auth"
	"flexiq/pkg/fault"
)

// Reflection serves gRPC server reflection of the services that the methods
// belong to, below "/grpc.reflection.". It needs a token, of any scope.
func Reflection(methods []Method, ids *auth.Verifier) http.Handler {
	var services []string
	for _, m := range methods {
		if !slices.Contains(services, m.Service) {
			services = append(services, m.Service)
		}
	}
	reflector := grpcreflect.NewStaticReflector(services...)
	mux := http.NewServeMux()
	mux.Handle(grpcreflect.NewHandlerV1(reflector))
	mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector))
	errors := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := ids.Verify(r.Context(), bearer(r)); err != nil {
			_ = errors.Write(w, r, connectError(fault.Of(err))) // a write fails when the client is gone
			return
		}
		mux.ServeHTTP(w, r)
	})
}
