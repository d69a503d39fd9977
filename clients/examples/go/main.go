// Asks a server which training datapoints the queries of a query_set attend to most, and prints those of the first one.
//
//	go run . ADDRESS LAYER QUERY_SET K      with DUALFORM_TOKEN a token, and DUALFORM_CA a PEM file to trust, for TLS
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "dualform.example/ask/dualform"
)

//go:generate protoc -I ../../../protos --go_out=. --go-grpc_out=. --go_opt=module=dualform.example/ask --go-grpc_opt=module=dualform.example/ask --go_opt=Mdualform_proto/v1/dualform.proto=dualform.example/ask/dualform --go-grpc_opt=Mdualform_proto/v1/dualform.proto=dualform.example/ask/dualform dualform_proto/v1/dualform.proto

// Numbers are bytes, little-endian on every machine.

func floats(data []byte) []float32 {
	numbers := make([]float32, len(data)/4)
	for i := range numbers {
		numbers[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return numbers
}

func longs(data []byte) []int64 {
	numbers := make([]int64, len(data)/8)
	for i := range numbers {
		numbers[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
	}
	return numbers
}

func matrix(rows, cols int64, numbers []float32) *pb.Matrix {
	data := make([]byte, 4*len(numbers))
	for i, number := range numbers {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(number))
	}
	return &pb.Matrix{Rows: rows, Cols: cols, Dtype: pb.ElementType_ELEMENT_TYPE_FLOAT32, Data: data}
}

func ask(address, layer, query_set string, k int64) error {
	security := grpc.WithTransportCredentials(insecure.NewCredentials())
	if authority := os.Getenv("DUALFORM_CA"); authority != "" {
		trusted, err := credentials.NewClientTLSFromFile(authority, "")
		if err != nil {
			return err
		}
		security = grpc.WithTransportCredentials(trusted)
	}
	// An answer may take 64 MiB, and gRPC takes 4 of one unless it is told otherwise.
	connection, err := grpc.NewClient(address, security, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return err
	}
	defer connection.Close()
	memory := pb.NewMemoryClient(connection)

	// Without a deadline the server's own one holds, ten minutes.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if token := os.Getenv("DUALFORM_TOKEN"); token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}

	stored, err := memory.QuerySet(ctx, &pb.QuerySetRequest{Name: query_set, Layer: &layer})
	if err != nil {
		return err
	}
	queries := stored.GetQueries()
	vectors := matrix(queries.GetRows(), queries.GetCols(), floats(queries.GetData()))
	hits, err := memory.TopK(ctx, &pb.TopKRequest{
		Layer:   layer,
		Queries: &pb.Queries{Queries: &pb.Queries_Vectors{Vectors: vectors}},
		K:       k,
	})
	if err != nil {
		return err
	}
	slots, scores := longs(hits.GetIds()), floats(hits.GetScores())
	first := longs(hits.GetCounts().GetData())[0] // of the slots, as many are the first query's
	for i := range slots[:first] {
		fmt.Printf("%d\t%v\n", slots[i], scores[i])
	}
	return nil
}

// What an error has to say beyond its code: google.rpc details, as they stand in its trailing metadata.
func explain(err error) {
	failed, reason, hint := status.Convert(err), "", ""
	for _, detail := range failed.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			reason, hint = info.GetReason(), info.GetMetadata()["hint"]
		}
	}
	if reason == "" {
		reason = failed.Code().String()
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", reason, failed.Message())
	if hint != "" {
		fmt.Fprintln(os.Stderr, hint)
	}
}

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: ask ADDRESS LAYER QUERY_SET K")
		os.Exit(2)
	}
	k, err := strconv.ParseInt(os.Args[4], 10, 64)
	if err == nil {
		err = ask(os.Args[1], os.Args[2], os.Args[3], k)
	}
	if err != nil {
		explain(err)
		os.Exit(1)
	}
}
