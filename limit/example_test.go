package limit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/tallygate/tallygate/limit"
)

func ExampleLimiter_Left() {
	limiter := limit.New(limit.Memory(), limit.PerDay(2))
	for range 3 {
		left, err := limiter.Left(context.Background(), "jane")
		fmt.Println(left == 0, err)
	}
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
}

func ExampleLimiter_Middleware() {
	limiter := limit.New(limit.Memory(), limit.PerDay(1))
	handler := limiter.Middleware(limit.WithRequest(func(r *http.Request) limit.Request {
		return limit.Request{Token: r.Header.Get("X-API-Key"), Resource: "search", Cost: 1}
	}))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "found") }))

	for range 2 {
		r := httptest.NewRequest(http.MethodGet, "/search", nil)
		r.Header.Set("X-API-Key", "jane")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("RateLimit-Policy"), w.Header().Get("Retry-After") != "")
	}
	// Output:
	// 200 "day";q=1;w=86400 false
	// 429 "day";q=1;w=86400 true
}
