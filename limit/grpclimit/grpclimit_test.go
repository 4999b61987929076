package grpclimit_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tallygate/tallygate/limit"
	"github.com/tallygate/tallygate/limit/grpclimit"
)

// stream is a server's stream of which only context and trailer are used.
type stream struct {
	grpc.ServerStream
	ctx     context.Context
	trailer metadata.MD
}

func (s *stream) Context() context.Context  { return s.ctx }
func (s *stream) SetTrailer(md metadata.MD) { s.trailer = md }

func TestCallsBeyondTheLimitAreResourceExhausted(t *testing.T) {
	limiter := limit.New(limit.Memory(), limit.PerDay(2))
	who := func(_ context.Context, method string) limit.Request {
		if method == "/health" {
			return limit.Request{}
		}
		return limit.Request{Token: "T", Cost: 1}
	}
	unary := func(method string) codes.Code {
		_, err := grpclimit.UnaryServerInterceptor(limiter, who)(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: method},
			func(context.Context, any) (any, error) { return nil, nil })
		return status.Code(err)
	}
	s := &stream{ctx: t.Context()}
	streamed := func() codes.Code {
		return status.Code(grpclimit.StreamServerInterceptor(limiter, who)(nil, s, &grpc.StreamServerInfo{FullMethod: "/s"},
			func(any, grpc.ServerStream) error { return nil }))
	}
	for i, got := range []codes.Code{unary("/u"), streamed(), unary("/u"), streamed(), unary("/health")} {
		want := codes.OK
		if i == 2 || i == 3 {
			want = codes.ResourceExhausted
		}
		if got != want {
			t.Errorf("call %d: %v, want %v", i, got, want)
		}
	}
	if len(s.trailer.Get(grpclimit.RetryAfter)) != 1 {
		t.Errorf("trailer is %v", s.trailer)
	}
}
