// An S3-compatible server in memory, with one bucket: prints its port, and ends with its input.
//
// Only requests that name the key "writer" are answered; their signatures are not judged.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

func main() {
	backend := s3mem.New()
	if err := backend.CreateBucket("events"); err != nil {
		log.Fatal(err)
	}
	objects := gofakes3.New(backend).Server()
	server := http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		if !strings.Contains(request.Header.Get("Authorization"), "Credential=writer/") {
			answer.WriteHeader(http.StatusForbidden)
			fmt.Fprint(answer, "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")
			return
		}
		objects.ServeHTTP(answer, request)
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	go func() {
		log.Fatal(http.Serve(listener, server))
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
}
