package limit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/redistest"
	"github.com/tallygate/tallygate/limit"
)

func TestTwoLimitersShareARedis(t *testing.T) {
	client := redistest.Start(t).Client()
	a, b := limit.New(limit.Redis(client), limit.PerDay(2)), limit.New(limit.Redis(client), limit.PerDay(2))
	for i, l := range []*limit.Limiter{a, b, a} {
		left, err := l.Left(t.Context(), "jane")
		if err != nil || (left > 0) != (i == 2) {
			t.Errorf("request %d: %v, %v", i, left, err)
		}
	}
}

func TestWithoutRedisARequestIsRefusedUnlessItMayPass(t *testing.T) {
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1})
	defer client.Close()
	server.Kill()
	l := limit.New(limit.Redis(client), limit.PerDay(2))
	passed := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for want, options := range map[int][]limit.Option{http.StatusServiceUnavailable: nil, http.StatusNoContent: {limit.WithFailOpen()}} {
		w := httptest.NewRecorder()
		l.Middleware(options...)(passed).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		if w.Code != want {
			t.Errorf("got %d, want %d", w.Code, want)
		}
	}
}

func TestLimitsThatMakeNoSenseAreAMistakeOfTheProgram(t *testing.T) {
	for _, limits := range [][]limit.Limit{{limit.PerDay(0)}, {limit.PerDay(1), limit.PerDay(2)}, {{Name: "x", Quota: 1}}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v is accepted", limits)
				}
			}()
			limit.New(limit.Memory(), limits...)
		}()
	}
}
