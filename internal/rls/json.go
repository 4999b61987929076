package rls

import (
	"errors"
	"io"
	"net/http"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/tallygate/tallygate/internal/problem"
)

// Register serves POST /json: the same service for clients that speak no gRPC.
// The body is the request's JSON, the answer that of the response; its status is
// 429 when the overall code is OVER_LIMIT.
func (s *Service) Register(mux *http.ServeMux) {
	mux.HandleFunc("POST /json", s.json)
}

func (s *Service) json(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	var request pb.RateLimitRequest
	if err == nil {
		err = protojson.Unmarshal(body, &request)
	}
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			problem.Write(w, problem.New(http.StatusRequestEntityTooLarge, "body", "has more than 1 MiB"))
			return
		}
		problem.Write(w, problem.New(http.StatusBadRequest, "body", "is not the JSON of a RateLimitRequest: "+err.Error()))
		return
	}
	response, err := s.ShouldRateLimit(r.Context(), &request)
	if err != nil {
		code := http.StatusBadRequest
		if status.Code(err) == codes.Unavailable {
			code = http.StatusServiceUnavailable
		}
		problem.Write(w, problem.New(code, "", status.Convert(err).Message()))
		return
	}
	answer, err := protojson.Marshal(response)
	if err != nil {
		problem.Write(w, problem.New(http.StatusInternalServerError, "", "the answer cannot be written"))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if response.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(answer) // the client has gone if this fails
}
