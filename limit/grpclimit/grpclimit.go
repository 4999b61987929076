// Package grpclimit limits gRPC calls by a limit.Limiter.
package grpclimit

import (
	"context"
	"errors"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tallygate/tallygate/limit"
)

// Who says who makes a call, and what for. Without a token a call passes uncounted.
type Who func(ctx context.Context, method string) limit.Request

// RetryAfter is the trailer of a refused call: seconds after which it can be made again.
const RetryAfter = "retry-after"

// UnaryServerInterceptor refuses calls beyond the limits with ResourceExhausted.
func UnaryServerInterceptor(l *limit.Limiter, who Who) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		after, err := check(ctx, l, who(ctx, info.FullMethod))
		if err != nil {
			if after != nil {
				_ = grpc.SetTrailer(ctx, after) // refused all the same without it
			}
			return nil, err
		}
		return handler(ctx, request)
	}
}

// StreamServerInterceptor refuses streams beyond the limits with ResourceExhausted.
func StreamServerInterceptor(l *limit.Limiter, who Who) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		after, err := check(stream.Context(), l, who(stream.Context(), info.FullMethod))
		if err != nil {
			if after != nil {
				stream.SetTrailer(after)
			}
			return err
		}
		return handler(server, stream)
	}
}

func check(ctx context.Context, l *limit.Limiter, r limit.Request) (metadata.MD, error) {
	if r.Token == "" {
		return nil, nil
	}
	d, err := l.Decide(ctx, r)
	switch {
	case errors.Is(err, limit.ErrUnavailable):
		return nil, status.Error(codes.Unavailable, limit.ErrUnavailable.Error())
	case err != nil:
		return nil, status.Error(codes.InvalidArgument, err.Error())
	case !d.Allowed:
		seconds := int64((d.RetryAfter + time.Second - 1) / time.Second)
		return metadata.Pairs(RetryAfter, strconv.FormatInt(seconds, 10)), status.Error(codes.ResourceExhausted, "quota exceeded")
	}
	return nil, nil
}
